"""Pictures of the shapes world: plain light background, upright shapes in flat colours, smooth edges."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sanarl.shapes.captions import COLOURS, Scene, parse

SIZE = 64
"""Side of a picture, in pixels, when nothing else is asked for. Lengths below are for this size."""

BACKGROUND = (232, 250)
"""Range of the background's grey level."""

_RADII = {1: (9.0, 15.0), 2: (8.0, 12.0), 3: (7.0, 9.5)}  # by number of objects


class Uniform(Protocol):
    """What drawing needs of a random source: random.Random and numpy.random.Generator both have it."""

    def uniform(self, low: float, high: float, /) -> float:
        """One number from [low, high)."""
        ...


def distance(shape: str, x: NDArray, y: NDArray, r: float) -> NDArray:
    """Signed distance, in pixels, from a shape of nominal radius ``r`` around the origin; negative inside.

    The three shapes have similar areas; the triangle points up.
    """
    if shape == "circle":
        return np.hypot(x, y) - r
    if shape == "square":
        return np.maximum(np.abs(x), np.abs(y)) - 0.9 * r
    half, slope = 1.15 * r, 2 / 3**0.5  # equilateral: bounding box 2 half wide, sqrt(3) half high
    base = y - half / slope
    sides = (2 * np.abs(x) - slope * (y + half / slope)) / np.sqrt(4 + slope**2)
    return np.maximum(base, sides)


def layout(scene: Scene, rng: Uniform) -> list[tuple[float, float, float]]:
    """Draw centre and radius ``(x, y, r)`` of each object: inside the picture, apart, and in the relation asked for."""
    n = len(scene.objects)
    low, high = _RADII[n]
    while True:
        radii = [rng.uniform(low, high)] * n if scene.kind == "count" else [rng.uniform(low, high) for _ in range(n)]
        margins = [1.2 * r + 2 for r in radii]
        spots = [(rng.uniform(m, SIZE - m), rng.uniform(m, SIZE - m), r) for m, r in zip(margins, radii, strict=True)]
        if _apart(spots) and _related(spots, scene.relation):
            return spots


def _apart(spots: list[tuple[float, float, float]]) -> bool:
    return all(
        max(abs(xi - xj), abs(yi - yj)) >= 1.1 * (ri + rj) + 3
        for i, (xi, yi, ri) in enumerate(spots)
        for xj, yj, rj in spots[:i]
    )


def _related(spots: list[tuple[float, float, float]], relation: str | None) -> bool:
    if relation is None:
        return True
    dx, dy = spots[1][0] - spots[0][0], spots[1][1] - spots[0][1]
    along, across = {"left of": (dx, dy), "right of": (-dx, dy), "above": (dy, dx), "below": (-dy, dx)}[relation]
    return along >= 18 and abs(across) <= 12


def render(prompt: str, rng: Uniform, size: int = SIZE) -> NDArray[np.uint8]:
    """Draw a picture that shows what a caption asks for.

    Args:
        prompt: A caption of the shapes world.
        rng: The source of every choice; equal states give equal pictures.
        size: Side of the picture in pixels; everything scales with it.

    Returns:
        uint8 ``(size, size, 3)``, RGB.

    Raises:
        ValueError: The caption is not of this world.
    """
    scene, scale = parse(prompt), size / SIZE
    image = np.full((size, size, 3), rng.uniform(*BACKGROUND), np.float32)
    y, x = np.mgrid[0:size, 0:size].astype(np.float32) + 0.5
    for (colour, shape), (cx, cy, r) in zip(scene.objects, layout(scene, rng), strict=True):
        cover = np.clip(0.5 - distance(shape, x - cx * scale, y - cy * scale, r * scale), 0, 1)[..., None]
        image = image * (1 - cover) + np.array(COLOURS[colour], np.float32) * cover
    return image.round().astype(np.uint8)
