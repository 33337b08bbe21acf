"""Memory that is not enough, for real: the system refuses it."""

import pytest
import torch

from sanarl.errors import UserError
from sanarl.runtime.memory import available, explained, free_memory


def test_what_torch_cannot_have_is_a_page():
    with (
        pytest.raises(UserError, match=r"(?s)the memory of this machine is not enough: .*smaller mini-batches"),
        explained(),
    ):
        torch.empty(1 << 60, dtype=torch.uint8)


def test_a_gpu_and_pythons_own_memory():
    with pytest.raises(UserError, match="the memory of the GPU is not enough: CUDA out of memory"), explained():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")
    with pytest.raises(UserError, match="the memory of this machine is not enough: MemoryError"), explained():
        bytearray(1 << 62)


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match="shapes"), explained():
        raise RuntimeError("shapes do not fit")


def test_what_is_available():
    found = available(torch.device("cpu"))
    assert found is not None
    assert abs(found - free_memory()) < 2**32
