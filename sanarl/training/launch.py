"""Starting the ranks of a run on this machine. Plain torchrun works as well: its environment is what ranks read."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import FrameType
from typing import IO

import torch

from sanarl.config import Loaded
from sanarl.errors import UserError
from sanarl.runtime.console import Voice
from sanarl.runtime.signals import EXIT
from sanarl.runtime.world import is_rank
from sanarl.training import engine, run
from sanarl.training.build import refuse_unsupported
from sanarl.training.rewarding import find_services

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
PR_SET_PDEATHSIG = 1
GRACE_S = 10.0
"""Seconds that the other ranks get to end once one has failed."""


def main(
    loaded: Loaded,
    dataset_module: str | None,
    nproc: str | None,
    resume: str | None,
    dry_run: bool = False,
    voice: Voice = "normal",
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

    Returns:
        The exit code: that of the rank that failed first.

    Raises:
        UserError: for whatever the user can mend.
    """
    if is_rank() or (count := processes(nproc)) == 1:
        return run.run(loaded, dataset_module, resume, dry_run, voice).exit_code
    refuse_unsupported(loaded.config)
    find_services(loaded.config)
    engine.check(loaded.config)
    return launch(count, [sys.executable, "-m", "sanarl", *sys.argv[1:]])


def processes(nproc: str | None) -> int:
    """How many processes ``--nproc`` means here.

    Raises:
        UserError: when it is no number, or more than there are GPUs.
    """
    gpus = torch.cuda.device_count()
    asked = nproc if nproc is not None else os.environ.get("NPROC_PER_NODE", "1")
    if asked == "auto":
        return max(gpus, 1)
    if not asked.isdecimal() or int(asked) < 1:
        raise UserError(f"--nproc: found {asked!r}; accepted: a number of processes from 1, or auto (one a GPU)")
    count = int(asked)
    if gpus and count > gpus:
        raise UserError(f"--nproc: found {count}, but this machine has {gpus} GPU(s)")
    return count


def launch(count: int, command: list[str]) -> int:
    """Run ``command`` once a rank, hand signals on to all, and end all when one fails.

    Ranks live in sessions of their own, so Ctrl-C reaches them once, through us, and they get SIGTERM should we die.

    Returns:
        0, or the exit code of the rank that failed first (128 + number when a signal ended it).
    """
    port = os.environ.get("MASTER_PORT") or str(_free_port())
    ranks: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the interpreter passes both
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        for rank in range(count):
            ranks.append(_start(command, rank, count, port))
        return _watch(ranks)
    finally:
        for rank_process in ranks:
            if rank_process.poll() is None:
                rank_process.kill()
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(command: list[str], rank: int, count: int, port: str) -> subprocess.Popen[bytes]:
    """One rank. Only the first speaks for itself; the others say the same and are heard when they fail first."""
    environment = os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    stderr = subprocess.PIPE if rank else None
    libc = ctypes.CDLL(None, use_errno=True)
    return subprocess.Popen(
        command,
        env=environment,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
    )


def _watch(ranks: list[subprocess.Popen[bytes]]) -> int:
    """Wait until all have ended; after the first failure the others get SIGTERM and a moment.

    A rank that ended because it was asked to is no failure: the others may still be saving.
    """
    said = {number: _Said(rank.stderr) for number, rank in enumerate(ranks) if rank.stderr is not None}
    failed: int | None = None
    deadline = float("inf")
    while any(rank.poll() is None for rank in ranks):
        if failed is None:
            failed = next((n for n, rank in enumerate(ranks) if rank.poll() not in (None, 0, *EXIT.values())), None)
            if failed is not None:
                deadline = time.monotonic() + GRACE_S
                for rank in ranks:
                    if rank.poll() is None:
                        rank.terminate()
        elif time.monotonic() > deadline:
            for rank in ranks:
                rank.kill()
        time.sleep(0.05)
    codes = [rank.returncode for rank in ranks]
    failed = failed if failed is not None else next((n for n, code in enumerate(codes) if code), None)
    if failed is None:
        return 0
    if failed in said:
        sys.stderr.write(f"rank {failed}:\n{said[failed].text()}")
    return codes[failed] if codes[failed] > 0 else 128 - codes[failed]


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


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
