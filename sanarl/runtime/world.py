"""The only module that talks to torch.distributed."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from sanarl.errors import UserError, first_line

T = TypeVar("T")
CPU = torch.device("cpu")
MESSAGE_BYTES = 256 * 2**20
"""Gradients that are summed over ranks at once; large enough that the number of messages costs nothing."""


_LOST = re.compile(
    "connection (closed|reset|refused)|broken pipe|timed out|timeout|nccl|socket|remote process exited", re.I
)


class PeerLost(UserError):
    """Another rank ended, or did not answer in time; what it said itself is the cause."""

    exit_code = 75


@contextmanager
def peers_named(size: int, timeout_s: float) -> Iterator[None]:
    """Turn what torch raises when another rank is gone into a line; ``size`` ranks wait ``timeout_s`` for each other.

    Raises:
        PeerLost: in the place of torch's error.
    """
    try:
        yield
    except RuntimeError as error:
        exchanged = isinstance(error, dist.DistError) or "gloo" in str(error).lower()
        if size == 1 or not exchanged or not _LOST.search(str(error)):
            raise
        raise PeerLost(
            f"another rank ended, or did not answer within train.rank_timeout_s = {timeout_s:g}; "
            f"go on from the last checkpoint with --resume auto ({first_line(error)[:200]})"
        ) from error


def is_rank() -> bool:
    """Whether this process was started as one rank of several; a lone WORLD_SIZE, as schedulers leave it, says nothing.

    Raises:
        UserError: when RANK and WORLD_SIZE are both there and one is no number.
    """
    found = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE") if name in os.environ}
    if len(found) < 2:
        return False
    if not all(value.isdecimal() for value in found.values()):
        raise UserError(f"the environment says {found}; torchrun sets numbers: unset them to train in one process")
    return int(found["WORLD_SIZE"]) > 1


@dataclass(frozen=True)
class World:
    """This process among its peers; without torchrun, the only one."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU
    timeout_s: float = 1800.0
    """How long ranks wait for each other."""

    @classmethod
    def start(cls, timeout_s: float = 1800.0) -> Self:
        """Join the group that torchrun's environment describes, on this rank's GPU when there is one.

        Ranks wait ``timeout_s`` for each other.
        """
        size = int(os.environ["WORLD_SIZE"]) if is_rank() else 1
        local = int(os.environ.get("LOCAL_RANK", "0")) if size > 1 else 0
        device = torch.device("cuda", local % torch.cuda.device_count()) if torch.cuda.is_available() else CPU
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if size > 1 and not dist.is_initialized():
            backend = "nccl" if device.type == "cuda" else "gloo"
            with peers_named(size, timeout_s):
                dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
        return cls(dist.get_rank(), dist.get_world_size(), device, timeout_s) if size > 1 else cls(device=device)

    def stop(self) -> None:
        """Leave the group."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    @property
    def main(self) -> bool:
        """Whether this rank writes files and talks to people."""
        return self.rank == 0

    def rows(self, n: int) -> range:
        """This rank's share of range(n): contiguous, sizes differing by at most one."""
        return range(self.rank * n // self.size, (self.rank + 1) * n // self.size)

    def memory(self) -> dict[str, float]:
        """``memory/peak_gib``: the most GPU memory that tensors took since the last call; nothing on the CPU."""
        if self.device.type != "cuda":
            return {}
        peak = torch.cuda.max_memory_allocated(self.device) / 2**30
        torch.cuda.reset_peak_memory_stats(self.device)
        return {"memory/peak_gib": peak}

    def sum(self, x: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(x)
        return x

    def sum_all(self, tensors: Sequence[Tensor]) -> None:
        """Sum every tensor over ranks, in place, in few messages: tensors travel together, ``MESSAGE_BYTES`` at a time.

        Every rank gives as many tensors of the same shapes and dtypes.
        """
        if self.size == 1:
            return
        for bundle in _bundles(tensors):
            flat = self.sum(torch.cat([t.flatten() for t in bundle]))
            parts = flat.split([t.numel() for t in bundle])
            torch._foreach_copy_(bundle, [part.view_as(t) for part, t in zip(parts, bundle, strict=True)])

    def gather(self, x: Tensor, n: int) -> Tensor:
        """Put the ranks' rows of ``rows(n)`` together: (share, ...) -> (n, ...) on the CPU, the same on every rank."""
        whole = torch.zeros(n, *x.shape[1:], dtype=x.dtype, device=self.device)
        mine = self.rows(n)
        whole[mine.start : mine.stop] = x.to(self.device)
        return self.sum(whole).cpu()

    def agree(self, flag: bool) -> bool:
        """Whether any rank says yes."""
        return bool(self.sum(torch.tensor(float(flag), device=self.device)) > 0)

    def side_group(self) -> Any:
        """Another group of all ranks, over gloo, for exchanges of a second thread; every rank asks once.

        None when this process is alone.
        """
        return dist.new_group(backend="gloo", timeout=timedelta(seconds=self.timeout_s)) if self.size > 1 else None

    def barrier(self) -> None:
        """Wait for every rank."""
        if self.size > 1:
            dist.barrier()

    def gather_objects(self, value: T) -> list[T]:
        """Every rank's value, on every rank."""
        box: list[T] = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(box, value)
        return box

    def tell(self, value: T) -> T:
        """The main rank's value, on every rank."""
        box = [value]
        if self.size > 1:
            dist.broadcast_object_list(box, device=self.device)
        return box[0]


def _bundles(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one dtype, in their order, up to ``MESSAGE_BYTES`` or a single larger one."""
    bundle: list[Tensor] = []
    for t in tensors:
        if bundle and (bundle[0].dtype != t.dtype or _bytes(bundle) + t.nbytes > MESSAGE_BYTES):
            yield bundle
            bundle = []
        bundle.append(t)
    if bundle:
        yield bundle


def _bytes(tensors: list[Tensor]) -> int:
    return sum(t.nbytes for t in tensors)
