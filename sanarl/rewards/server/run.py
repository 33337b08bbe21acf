"""The service as a process: bind, load, serve, drain, end."""

import asyncio
import errno
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from sanarl.errors import UserError
from sanarl.rewards.server import app
from sanarl.rewards.server.board import DECODERS, Board
from sanarl.rewards.server.intake import Spool
from sanarl.rewards.server.metrics import Metrics
from sanarl.rewards.server.process import NotLoaded
from sanarl.rewards.server.settings import Settings
from sanarl.rewards.server.store import Memory, Redis, Store, StoreDown
from sanarl.rewards.server.supervisor import Supervisor

MOST_CONNECTIONS = 1024


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets on every address of ``host``; of IPv6 only where the machine has it.

    Raises:
        UserError: When the port is taken or the address is not this machine's. Nothing else is tried.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UserError(f"host {host!r} is not known: {error.strerror}") from error
    sockets: list[socket.socket] = []
    for family, _, _, _, address in sorted(set(found), key=lambda one: one[0] != socket.AF_INET):
        if sockets and not port:
            address = (address[0], sockets[0].getsockname()[1], *address[2:])
        one = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio looks at the protocol
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            one.bind(address)
        except OSError as error:
            one.close()
            if sockets and error.errno == errno.EADDRNOTAVAIL:
                continue
            for other in sockets:
                other.close()
            raise UserError(f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}") from error
        sockets.append(one)
    return sockets


class _Server(uvicorn.Server):
    """uvicorn without signal handlers of its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Service:
    """Everything of one replica.

    Args:
        settings: The file.
        token: That requests must carry; empty: none.
    """

    def __init__(self, settings: Settings, token: str):
        self.settings, self.limits = settings, settings.service
        self.metrics = Metrics()
        self.spool = Spool(self.limits.spool, self.limits.queue_mb * 1_000_000)
        labels = list(dict.fromkeys(one.label for one in settings.scorers))
        self.decoders = self._decoder_specs()
        self.board = Board(labels, list(self.decoders), self._store(), self.limits, self.metrics)
        self.supervisors: list[Supervisor] = []
        replica = os.environ.get("LEPTON_REPLICA_ID") or f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self.api = app.Api(self.board, self.spool, self.limits, replica, self.health)
        self.app = app.make(self.api, token)
        self.asked_to_stop = asyncio.Event()
        self.forced = False

    def _decoder_specs(self) -> dict[str, dict[str, Any]]:
        decode = self.settings.decode_args
        paths = {16: decode.model_path, 48: decode.wan2pt2_model_path}
        shared = {"kind": "decoder", "dtype": decode.dtype, "device": decode.device}
        if self.settings.no_latent_decoder:
            return {}
        return {DECODERS[channels]: {**shared, "model_path": path} for channels, path in paths.items() if path}

    def _store(self) -> Store:
        settings, limits = self.settings, self.limits
        if settings.redis_host:
            return Redis(settings.redis_host, settings.redis_port, limits.result_s, limits.lease_s)
        return Memory(limits.result_s)

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether every line is served, and the state of each."""
        states: dict[str, str] = {}
        for one in self.supervisors:
            if states.get(one.label) != "ready":
                states[one.label] = f"{one.state}: {one.cause}" if one.cause else one.state
        whole = bool(states) and all(state == "ready" for state in states.values())
        return whole, {"replica_id": self.api.replica, "rewards": states, "queue": self.board.requests}

    def _alone(self, label: str) -> bool:
        """Whether no process serves a line or will soon."""
        return all(one.state == "down" for one in self.supervisors if one.label == label)

    def supervise(self) -> list[asyncio.Task[None]]:
        """Start the processes."""
        for one in self.settings.scorers:
            spec = {"kind": "scorer", "reward_type": one.reward_type, "label": one.label, "options": one.options}
            spec["arguments"] = one.arguments
            made = Supervisor(one.label, one.venv_python, spec, self.board, self.limits, self._alone)
            self.supervisors.append(made)
        for label, spec in self.decoders.items():
            self.supervisors.append(Supervisor(label, "python", spec, self.board, self.limits, self._alone))
        return [asyncio.create_task(one.run()) for one in self.supervisors]

    async def loaded(self) -> None:
        """Wait until every scorer is loaded.

        Raises:
            UserError: Naming every one that cannot be.
        """
        results = await asyncio.gather(*(one.first_load for one in self.supervisors), return_exceptions=True)
        faults = [
            f"reward {one.label!r} could not be loaded: {result}"
            for one, result in zip(self.supervisors, results, strict=True)
            if isinstance(result, NotLoaded)
        ]
        if faults:
            raise UserError("\n".join(faults))

    async def keep_leases(self) -> None:
        """Tell other replicas, again and again, what is being worked on here."""
        while True:
            try:
                await self.board.store.renew(list(self.board.jobs))
            except StoreDown as error:
                _say(f"{error}; trying again")
            await asyncio.sleep(self.limits.lease_s / 3)

    def stop(self) -> None:
        """Ask for a graceful end; asked again, end at once."""
        self.forced = self.asked_to_stop.is_set()
        self.api.draining = True
        self.asked_to_stop.set()

    async def drain(self) -> bool:
        """Finish what was accepted."""
        waiting = len(self.board.jobs)
        _say(f"ending: {waiting} requests to finish, at most {self.limits.drain_s:g} s; again to end at once")
        end = time.monotonic() + self.limits.drain_s
        while time.monotonic() < end and not self.forced:
            if await self.board.drained(min(time.monotonic() + 0.2, end)):
                return True
        jobs, unpulled = len(self.board.jobs), len(self.board.unpulled)
        _say(f"ended before everything was done: {jobs} requests not finished, {unpulled} results not pulled")
        return jobs == 0 and not self.forced


async def _serve(settings: Settings, token: str, sockets: list[socket.socket]) -> int:
    service = Service(settings, token)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.stop)
    config = uvicorn.Config(
        service.app, log_config=None, access_log=False, lifespan="off", limit_concurrency=MOST_CONNECTIONS
    )
    server = _Server(config)
    tasks: list[asyncio.Task[Any]] = []
    try:
        try:
            await service.board.store.check()
        except StoreDown as error:
            raise UserError(f"{error}; start it, or leave redis_host out to keep results in memory") from error
        tasks += service.supervise()
        tasks += [asyncio.create_task(service.keep_leases()), asyncio.create_task(server.serve(sockets))]
        stopping = asyncio.create_task(service.asked_to_stop.wait())
        loading = asyncio.create_task(service.loaded())
        tasks += [stopping, loading]
        await asyncio.wait({stopping, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            _say(f"ready: {', '.join(sorted(service.board.labels))}")
        await stopping
        code = 0 if await service.drain() else 1
        server.should_exit = True
        server.force_exit = True
        while not tasks[len(service.supervisors) + 1].done():
            await asyncio.sleep(0.02)
        return code
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await service.board.store.close()
        service.spool.close()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(settings: Settings, token: str) -> int:
    """Serve until a signal; the exit code: 0 when nothing accepted was lost.

    Raises:
        UserError: When it cannot listen, reach its Redis or load a scorer.
    """
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    sockets = bind(settings.host, settings.port)
    port = sockets[0].getsockname()[1]
    _say(f"listening on {settings.host} port {port}")
    if not token:
        _say("no token is set (REMOTE_REWARD_TOKEN): whoever reaches this port can use the service")
    return asyncio.run(_serve(settings, token, sockets))
