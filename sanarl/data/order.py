"""Which item comes when: a pure function of the position, so there is no iterator to save and nothing to restore."""

import hashlib
from functools import lru_cache

import numpy as np


@lru_cache(maxsize=4)
def _epoch(n: int, seed: int, epoch: int) -> tuple[int, ...]:
    """The permutation of one epoch: the items sorted by the raw 64-bit words of a keyed Philox generator.

    Only the raw words are used: numpy promises that they stay the same from version to version, which it does not
    promise for ``permutation`` or ``shuffle``.
    """
    digest = hashlib.blake2b(f"sanarl order {seed} {epoch}".encode(), digest_size=16).digest()
    words = np.random.Philox(key=int.from_bytes(digest, "little")).random_raw(n)
    return tuple(np.argsort(words, kind="stable").tolist())


def picks(n: int, start: int, count: int, seed: int, shuffle: bool) -> list[int]:
    """Item numbers at positions ``start`` to ``start + count`` of endless epochs laid end to end.

    Args:
        n: Number of items in the data set.
        start: Position of the first pick, counted from 0 since the beginning of training.
        count: How many picks.
        seed: With the epoch's number it decides the permutation of that epoch; nothing else does.
        shuffle: False for 0, 1, ..., n - 1, 0, 1, ...

    Returns:
        ``count`` integers in [0, n). Every epoch is a permutation, and asking for a range in pieces gives the same
        numbers as asking for it at once.

    Raises:
        ValueError: If n is not positive, or start or count is negative.
    """
    if n < 1 or start < 0 or count < 0:
        raise ValueError(f"picks needs n >= 1, start >= 0 and count >= 0, found n={n}, start={start}, count={count}")
    positions = range(start, start + count)
    if not shuffle:
        return [i % n for i in positions]
    return [_epoch(n, seed, i // n)[i % n] for i in positions]
