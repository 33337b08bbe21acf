"""Aspect buckets: a few sizes of about the same area, so that pictures lose little when they are cropped."""

import math
from collections.abc import Sequence

Size = tuple[int, int]
"""Height and width."""

CELL = 32
WIDEST = 2.0


def grid(size: Size, cell: int = CELL, widest: float = WIDEST) -> tuple[Size, ...]:
    """Sizes of about the area of ``size``, from ``widest`` times as tall to as wide, narrow ones first.

    Every side is a multiple of ``cell``; ``size`` itself is among them.
    """
    height, width = size
    found = {size}
    for w in range(cell, math.ceil(math.sqrt(height * width * widest)) + cell, cell):
        h = max(cell, round(height * width / w / cell) * cell)
        if 1 / widest <= w / h <= widest:
            found.add((h, w))
    return tuple(sorted(found, key=lambda s: (s[1] / s[0], s)))


def nearest(height: int, width: int, sizes: Sequence[Size]) -> Size:
    """The size whose aspect is nearest (in ratio); of equally near ones the first."""
    aspect = math.log(width / height)
    return min(sizes, key=lambda size: abs(math.log(size[1] / size[0]) - aspect))
