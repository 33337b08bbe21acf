"""Several machines under one run: who they are, and how they hear of a rank that failed elsewhere."""

import os
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from torch.distributed import DistError, TCPStore

from sanarl.errors import UserError

MEET_S = 600.0
"""Seconds that machines wait for each other at the start."""
_FAILED, _DONE = "failed", "done"


@dataclass(frozen=True)
class Nodes:
    """This machine among those of a run."""

    count: int
    number: int
    host: str
    port: int

    @classmethod
    def asked(cls, nnodes: int, rdzv: str | None, node_rank: int | None) -> Self | None:
        """What ``--nnodes``, ``--rdzv`` and ``--node-rank`` mean here; None for one machine.

        Without ``--node-rank`` Slurm's number of the machine counts.

        Raises:
            UserError: for whatever is missing or wrong, all at once.
        """
        if nnodes == 1 and rdzv is None and node_rank is None:
            return None
        faults = []
        if nnodes < 1:
            faults.append(f"--nnodes: found {nnodes}; accepted: a number of machines from 1")
        host, _, port = (rdzv or "").rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65535:
            found = "missing" if rdzv is None else f"found {rdzv!r}"
            faults.append(
                f"--rdzv: {found}; accepted: HOST:PORT of the first machine, the same on every one; "
                "PORT and the port after it must be free there"
            )
        slurm = os.environ.get("SLURM_NODEID", "")
        if node_rank is None and not slurm.isdecimal():
            faults.append("--node-rank: missing; accepted: the number of this machine from 0 (Slurm sets SLURM_NODEID)")
        number = node_rank if node_rank is not None else int(slurm) if slurm.isdecimal() else 0
        if not 0 <= number < max(nnodes, 1):
            faults.append(f"--node-rank: found {number}; accepted: 0 to {nnodes - 1}")
        if faults:
            raise UserError("\n".join(faults))
        return cls(nnodes, number, host.strip("[]"), int(port))


class Board:
    """Where the launchers of several machines leave word; the first machine's keeps it."""

    def __init__(self, nodes: Nodes):
        """Find the first machine.

        Raises:
            UserError: when it is not there in time.
        """
        self._nodes = nodes
        try:
            self._store = TCPStore(
                nodes.host,
                nodes.port + 1,
                is_master=nodes.number == 0,
                timeout=timedelta(seconds=MEET_S),
                wait_for_workers=False,
            )
        except (DistError, RuntimeError) as error:
            raise UserError(
                f"--rdzv: machine {nodes.number} finds nobody at {nodes.host}:{nodes.port + 1}: {error}"
            ) from error

    def tell(self, what: str) -> None:
        """Leave word that a rank of this machine failed; the first word counts."""
        try:
            self._store.compare_set(_FAILED, "", f"machine {self._nodes.number}: {what}")
        except (DistError, RuntimeError):
            return  # the first machine is gone: the others hear of that

    def heard(self) -> str | None:
        """What failed on a machine, or that the first one is gone; None while all is well."""
        try:
            if self._store.check([_FAILED]):
                return str(self._store.get(_FAILED).decode(errors="replace"))
        except (DistError, RuntimeError):
            return "the first machine is gone"
        return None

    def leave(self, wait_s: float) -> None:
        """Say that this machine is done; the first one stays until all are, so that they can hear it."""
        try:
            self._store.add(_DONE, 1)
            deadline = time.monotonic() + wait_s
            while self._nodes.number == 0 and time.monotonic() < deadline:
                if self._store.add(_DONE, 0) >= self._nodes.count:
                    return
                time.sleep(0.1)
        except (DistError, RuntimeError):
            return
