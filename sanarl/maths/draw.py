"""Randomness by identity. A draw depends on what it is for, never on when, where or in which batch it happens.

Micro-batch size, world size and resuming are then invisible to the numbers, and there is no generator state to save.
Everything is drawn on the CPU: the same bits on every device.
"""

import hashlib

import torch
from torch import Tensor

Key = tuple[int | str, ...]


def generator(*key: int | str) -> torch.Generator:
    """A CPU generator seeded by a hash of ``key``; equal keys give equal streams in every process."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


def normal(ids: Tensor, shape: tuple[int, ...], *key: int | str) -> Tensor:
    """Standard normal float32, (B, *shape): a stream of its own for every sample id (B,)."""
    out = torch.empty(len(ids), *shape)
    for row, i in enumerate(ids.tolist()):
        torch.randn(shape, generator=generator(*key, i), out=out[row])
    return out


def uniform(ids: Tensor, *key: int | str) -> Tensor:
    """Uniform in [0, 1), (B,) float32: one number for every sample id (B,)."""
    out = torch.empty(len(ids))
    for row, i in enumerate(ids.tolist()):
        torch.rand((), generator=generator(*key, i), out=out[row])
    return out


def permutations(ids: Tensor, n: int, *key: int | str) -> Tensor:
    """(B, n) int64: a permutation of range(n) of its own for every sample id (B,)."""
    out = torch.empty(len(ids), n, dtype=torch.int64)
    for row, i in enumerate(ids.tolist()):
        torch.randperm(n, generator=generator(*key, i), out=out[row])
    return out
