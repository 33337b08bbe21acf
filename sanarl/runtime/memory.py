"""How much memory there is, and a page instead of a traceback when it was not enough."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from sanarl.errors import UserError

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
