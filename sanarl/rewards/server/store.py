"""Where results wait to be pulled: in memory, or in a Redis that replicas share."""

import json
import time
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from sanarl.rewards.wire import PENDING, UNKNOWN

DONE, UNASKED = "done", "unasked"
MOST = 100_000
"""Requests whose results are kept in memory."""


class StoreDown(Exception):
    """The store does not answer; the text says which and why."""


class Found(NamedTuple):
    """What is known of a result: its state, and its text when it is done."""

    state: str
    text: str = ""


class Store(Protocol):
    """Results by request and reward. The first result counts; later ones for the same are dropped."""

    shared: bool
    """Whether results outlive this process."""

    async def open(self, uuid: str, names: list[str]) -> None:
        """Make a request known, with every reward that it names."""

    async def put(self, uuid: str, name: str, text: str) -> bool:
        """Keep a result; False when there is one already, or the request is not known."""

    async def get(self, uuid: str, name: str) -> Found:
        """What is known of a result."""

    async def renew(self, uuids: Iterable[str]) -> None:
        """Tell other replicas that these are still being worked on."""

    async def check(self) -> None:
        """Raise StoreDown when it does not answer."""

    async def close(self) -> None:
        """Let go of connections."""


class Memory:
    """Results of this process alone.

    Args:
        keep_s: Seconds that a result stays.
    """

    shared = False

    def __init__(self, keep_s: float):
        self._keep_s = keep_s
        self._results: dict[str, dict[str, str | None]] = {}
        self._ends: dict[str, float] = {}  # in the order of opening

    async def open(self, uuid: str, names: list[str]) -> None:
        """Make a request known."""
        self._forget()
        self._results[uuid] = dict.fromkeys(names)
        self._ends[uuid] = time.monotonic() + self._keep_s

    def _forget(self) -> None:
        now = time.monotonic()
        while self._ends:
            first = next(iter(self._ends))
            expired = self._ends[first] < now
            if not expired and len(self._ends) <= MOST:
                break
            del self._ends[first]
            if None not in self._results[first].values():
                del self._results[first]
                continue
            self._ends[first] = now + self._keep_s  # still being scored: it stays, at the end of the line
            if not expired:
                break

    async def put(self, uuid: str, name: str, text: str) -> bool:
        """Keep the first result."""
        results = self._results.get(uuid)
        if results is None or results.get(name, "") is not None:
            return False
        results[name] = text
        return True

    async def get(self, uuid: str, name: str) -> Found:
        """What is known of a result."""
        self._forget()
        results = self._results.get(uuid)
        if results is None:
            return Found(UNKNOWN)
        if name not in results:
            return Found(UNASKED)
        text = results[name]
        return Found(PENDING) if text is None else Found(DONE, text)

    async def renew(self, uuids: Iterable[str]) -> None:
        """Nobody else asks."""

    async def check(self) -> None:
        """Memory answers."""

    async def close(self) -> None:
        """Nothing to let go."""


class Redis:
    """Results in Redis: any replica answers for any other.

    A request that is being worked on holds a lease that its replica renews; when that replica dies the lease ends, and
    the request is unknown to everybody, so that its client sends it again.

    Args:
        host: Of Redis.
        port: Of Redis.
        keep_s: Seconds that a result stays.
        lease_s: Seconds that a lease lasts.
    """

    shared = True

    def __init__(self, host: str, port: int, keep_s: float, lease_s: float):
        from redis.asyncio import Redis as Client
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        self._place = f"Redis at {host}:{port}"
        self._keep_ms, self._lease_ms = int(1000 * keep_s), int(1000 * lease_s)
        self._client = Client(
            host=host, port=port, socket_timeout=2, socket_connect_timeout=2, retry=Retry(NoBackoff(), 1)
        )

    async def _ask(self, commands: list[tuple[object, ...]]) -> list[object]:
        from redis.exceptions import RedisError

        try:
            pipeline = self._client.pipeline(transaction=True)
            for command in commands:
                pipeline.execute_command(*command)
            return list(await pipeline.execute())
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreDown(
                f"{self._place} does not answer: {str(error).splitlines()[0] or type(error).__name__}"
            ) from error

    async def open(self, uuid: str, names: list[str]) -> None:
        """Make a request known, and hold its lease."""
        await self._ask(
            [
                ("SET", _key(uuid, "names"), json.dumps(names), "PX", self._keep_ms),
                ("SET", _key(uuid, "lease"), "1", "PX", self._lease_ms),
            ]
        )

    async def put(self, uuid: str, name: str, text: str) -> bool:
        """Keep the first result."""
        (names,) = await self._ask([("GET", _key(uuid, "names"))])
        if not isinstance(names, bytes) or name not in json.loads(names):
            return False
        (kept,) = await self._ask([("SET", _key(uuid, "result", name), text, "NX", "PX", self._keep_ms)])
        return bool(kept)

    async def get(self, uuid: str, name: str) -> Found:
        """What is known of a result, whichever replica made it."""
        keys = (_key(uuid, "result", name), _key(uuid, "names"), _key(uuid, "lease"))
        (values,) = await self._ask([("MGET", *keys)])
        assert isinstance(values, list)
        text, names, lease = values
        if text is not None:
            return Found(DONE, text.decode())
        if names is None:
            return Found(UNKNOWN)
        if name not in json.loads(names):
            return Found(UNASKED)
        return Found(PENDING if lease is not None else UNKNOWN)

    async def renew(self, uuids: Iterable[str]) -> None:
        """Hold the leases of requests that are being worked on."""
        commands = [("SET", _key(uuid, "lease"), "1", "PX", self._lease_ms) for uuid in uuids]
        if commands:
            await self._ask(list(commands))

    async def check(self) -> None:
        """Raise StoreDown when it does not answer."""
        await self._ask([("PING",)])

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.aclose()


def _key(uuid: str, *parts: str) -> str:
    return ":".join(("sanarl:reward", uuid, *parts))
