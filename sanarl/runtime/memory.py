"""How much memory there is, and a page instead of a traceback when it was not enough."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from sanarl.errors import UserError
from sanarl.runtime.world import World

_SHORT = ("can't allocate memory", "not enough memory", "DefaultCPUAllocator")
ADVICE = (
    "smaller mini-batches change no result: train.train_policy.mini_batch, rollout.n_generation_mini_batch, "
    "validation.batch_size; policy.model_gradient_checkpointing = true and policy.diffusers.offload = true save more; "
    "policy.diffusers.inference_size and inference_frames decide how large a sample is"
)


def free_memory(file: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes of host memory that can be had without swapping; None where the system does not say."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", file.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def available(device: torch.device) -> int | None:
    """Bytes of a GPU in all, or of host memory that is free; None where the system does not say."""
    return int(torch.cuda.mem_get_info(device)[1]) if device.type == "cuda" else free_memory()


def budget(device: torch.device) -> int | None:
    """Bytes that this process may have of a GPU in all, what it holds already included; of host memory what is free.

    A GPU that others use as well, or of which torch may take a share only, has less than its size.
    """
    if device.type != "cuda":
        return free_memory()
    free, total = torch.cuda.mem_get_info(device)
    share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)(device)  # since torch 2.8
    return min(int(share * total), free + torch.cuda.memory_reserved(device))


def shared_budget(world: World) -> int | None:
    """The smallest budget of all ranks, which all call this; ranks without GPUs divide the memory of their machine."""
    mine = budget(world.device)
    if mine is not None and world.device.type != "cuda":
        mine //= world.size
    found = [each for each in world.gather_objects(mine) if each is not None]
    return min(found, default=None)


@contextmanager
def explained() -> Iterator[None]:
    """Turn what torch raises when memory is short into a page.

    Raises:
        UserError: with torch's first line and what takes less.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # OutOfMemoryError is a RuntimeError
        on_gpu = isinstance(error, torch.OutOfMemoryError)
        if not (on_gpu or isinstance(error, MemoryError) or any(words in str(error) for words in _SHORT)):
            raise
        first = (str(error) or type(error).__name__).splitlines()[0]
        where = "the GPU" if on_gpu else "this machine"
        raise UserError(f"the memory of {where} is not enough: {first}\n  {ADVICE}") from error
