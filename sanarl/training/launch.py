"""Starting the ranks of a run on this machine, or its share of them. Plain torchrun works as well: its environment is
what ranks read."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import FrameType
from typing import IO

import torch

from sanarl.config import Loaded, Note
from sanarl.errors import UserError
from sanarl.runtime.console import Voice
from sanarl.runtime.signals import EXIT
from sanarl.runtime.world import PeerLost, is_rank
from sanarl.training import engine, run
from sanarl.training.nodes import Board, Nodes
from sanarl.training.rewarding import find_services

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
PR_SET_PDEATHSIG = 1
NPROC = "NPROC_PER_NODE"
GRACE_S = 10.0
"""Seconds that the other ranks get to end once one has failed."""
SAME_MOMENT_S = 2.0
"""A rank that ends so soon after the first may be the one that the first waited for."""
ENDED = (-signal.SIGKILL, -signal.SIGTERM, EXIT[signal.SIGTERM])
"""Codes of ranks that we ended."""
LOOK_S = 0.5
"""Seconds between looks at what other machines say."""


def main(
    loaded: Loaded,
    dataset_module: str | None,
    nproc: str | None,
    resume: str | None,
    dry_run: bool = False,
    voice: Voice = "normal",
    nodes: Nodes | None = None,
) -> int:
    """Train on as many processes as asked for.

    Args:
        loaded: the configuration.
        dataset_module: see ``run.run``.
        nproc: a number, or ``auto`` for one process a GPU; None: NPROC_PER_NODE, else 1. Ignored in a process that is
            a rank already.
        resume: see ``run.run``.
        dry_run: see ``run.run``.
        voice: see ``run.run``.
        nodes: this machine among several, each with as many processes; None: it is the only one.

    Returns:
        The exit code: that of the rank that failed first.

    Raises:
        UserError: for whatever the user can mend.
    """
    if not is_rank() and (hint := idle_gpus(nproc)) is not None:
        loaded = replace(loaded, notes=(*loaded.notes, Note("info", hint)))
    if is_rank() or ((count := processes(nproc)) == 1 and nodes is None):
        return run.run(loaded, dataset_module, resume, dry_run, voice).exit_code
    find_services(loaded.config)
    engine.check(loaded.config)
    return launch(count, [sys.executable, "-m", "sanarl", *sys.argv[1:]], nodes)


def processes(nproc: str | None) -> int:
    """How many processes ``--nproc`` means here.

    Raises:
        UserError: when it is no number, or more than there are GPUs.
    """
    gpus = torch.cuda.device_count()
    about, asked = ("--nproc", nproc) if nproc is not None else (f"{NPROC} in the environment", os.environ.get(NPROC))
    if nproc is None and not asked:
        return 1
    if asked == "auto":
        return max(gpus, 1)
    if not asked or not asked.isdecimal() or int(asked) < 1:
        raise UserError(f"{about}: found {asked!r}; accepted: a number of processes from 1, or auto (one a GPU)")
    count = int(asked)
    if gpus and count > gpus:
        raise UserError(f"{about}: found {count}, but this machine has {gpus} GPU(s)")
    return count


def idle_gpus(nproc: str | None) -> str | None:
    """A hint for a person who said nothing about processes where there are several GPUs."""
    gpus = torch.cuda.device_count()
    if gpus < 2 or nproc is not None or os.environ.get(NPROC):
        return None
    return f"one of {gpus} GPUs is used; --nproc auto or {NPROC}={gpus} uses all, with the same numbers"


def launch(count: int, command: list[str], nodes: Nodes | None = None) -> int:
    """Run ``command`` once a rank, hand signals on to all, and end all when one fails, on whatever machine.

    Ranks live in sessions of their own, so Ctrl-C reaches them once, through us, and they get SIGTERM should we die.

    Returns:
        0, or the exit code of the rank that failed first (128 + number when a signal ended it).
    """
    nodes = nodes or Nodes(1, 0, "127.0.0.1", _port())
    board = Board(nodes) if nodes.count > 1 else None
    ranks: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the interpreter passes both
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        for rank in range(count):
            ranks.append(_start(command, rank, count, nodes))
        return _watch(ranks, nodes.number * count, board)
    finally:
        for rank_process in ranks:
            if rank_process.poll() is None:
                rank_process.kill()
        if board is not None:
            board.leave(GRACE_S)
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(command: list[str], rank: int, count: int, nodes: Nodes) -> subprocess.Popen[bytes]:
    """One rank. Only the first speaks for itself; the others say the same and are heard when they fail first."""
    environment = os.environ | {
        "RANK": str(nodes.number * count + rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(nodes.count * count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": nodes.host,
        "MASTER_PORT": str(nodes.port),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    stderr = subprocess.PIPE if rank or nodes.number else None
    libc = ctypes.CDLL(None, use_errno=True)
    return subprocess.Popen(
        command,
        env=environment,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
    )


def _watch(ranks: list[subprocess.Popen[bytes]], first: int, board: Board | None) -> int:
    """Wait until all have ended; after the first failure, here or elsewhere, the others get SIGTERM and a moment.

    A rank that ended because it was asked to is no failure: the others may still be saving.

    Args:
        ranks: of this machine. first: number of the first of them. board: of the machines; None for one.
    """
    said = {number: _Said(rank.stderr) for number, rank in enumerate(ranks) if rank.stderr is not None}
    failed: list[int] = []
    word: str | None = None
    deadline, looked = float("inf"), time.monotonic()
    while any(rank.poll() is None for rank in ranks):
        fresh = [n for n, rank in enumerate(ranks) if rank.poll() not in (None, 0, *EXIT.values()) and n not in failed]
        if board is not None and word is None and not failed and time.monotonic() - looked > LOOK_S:
            word, looked = board.heard(), time.monotonic()
        if deadline == float("inf") and (fresh or word is not None):
            deadline = time.monotonic() + GRACE_S
            _end(ranks, signal.SIGTERM)
            if board is not None and fresh and ranks[fresh[0]].returncode != PeerLost.exit_code:
                board.tell(f"rank {first + fresh[0]}, which ended with {ranks[fresh[0]].returncode}")
        # What ends after the first failure ends because of it or of us, unless it came at the same moment.
        if time.monotonic() < deadline - GRACE_S + SAME_MOMENT_S:
            failed += [n for n in fresh if not failed or ranks[n].returncode not in ENDED]
        if time.monotonic() > deadline:
            _end(ranks, signal.SIGKILL)
        time.sleep(0.05)
    codes = [rank.returncode for rank in ranks]
    failed = failed or [n for n, code in enumerate(codes) if code]
    if word is not None:
        sys.stderr.write(f"ended because of {word}\n")
        return 1
    if not failed:
        return 0
    cause = next((n for n in failed if codes[n] != PeerLost.exit_code), failed[0])
    text = said[cause].text() if cause in said else ""
    if codes[cause] == PeerLost.exit_code:
        if board is not None and (word := board.heard()) is not None:
            sys.stderr.write(f"ended because of {word}\n")
            return 1
        hung = [first + n for n, code in enumerate(codes) if code in ENDED]
        sys.stderr.write(text if cause in said and codes[0] != PeerLost.exit_code else "")
        sys.stderr.write(f"rank {', '.join(map(str, hung))} did not answer and was ended\n" if hung else "")
        return 1
    if cause in said:
        sys.stderr.write(f"rank {first + cause}:\n{text}")
    return codes[cause] if codes[cause] > 0 else 128 - codes[cause]


def _end(ranks: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.send_signal(number)


class _Said:
    """What a rank writes to stderr, read as it comes so that the pipe never fills."""

    def __init__(self, stream: IO[bytes]):
        self._parts: list[bytes] = []
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            while part := stream.read1(1 << 16):  # type: ignore[attr-defined]
                self._parts = [*self._parts[-63:], part]

    def text(self) -> str:
        self._thread.join(timeout=1)
        return b"".join(self._parts).decode(errors="replace")


def _port() -> int:
    """The port that the environment asks for, or a free one.

    Raises:
        UserError: when it asks for none, or for one that somebody listens on, such as another run.
    """
    asked = os.environ.get("MASTER_PORT")
    if not asked:
        return _free_port()
    if not asked.isdecimal() or not 0 < int(asked) < 65536:
        raise UserError(f"MASTER_PORT in the environment: found {asked!r}; accepted: a port from 1 to 65535, or unset")
    try:
        with socket.create_server(("", int(asked))):
            return int(asked)
    except OSError as error:
        raise UserError(
            f"MASTER_PORT in the environment: found {asked}, on which nobody can listen here ({error.strerror}); "
            "accepted: a free port, or unset, which takes one"
        ) from error


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
