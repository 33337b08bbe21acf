"""The verifiable reward of the shapes world: what a picture shows, read from its pixels alone, against its caption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from sanarl.shapes.captions import COLOURS, parse

COLOUR_ONLY, SHAPE_ONLY = 0.5, 0.25
"""Credit for an object of the right colour but wrong shape, and of the right shape but wrong colour."""

_SIZE, _MIN_SIDE = 64, 48  # below 48 small circles and squares look alike; thresholds are for 64 and scale
_MIN_AREA, _OPENING, _MIN_OFFSET = 40, 2, 8
_MAX_DISTANCE = 110.0  # RGB distance from the nearest palette colour
_MIN_IOU, _ASPECT = 0.75, (0.6, 1.67)
_NAMES = ("background", *COLOURS, "other")
_PALETTE = np.array([(241, 241, 241), *COLOURS.values()], np.float32)


@dataclass(frozen=True)
class Found:
    """A connected region of one colour.

    Attributes:
        colour: A colour of the world, or ``other``.
        shape: A shape of the world, or ``blob``.
        x: Centroid, pixels from the left.
        y: Centroid, pixels from the top.
        area: Pixels.
    """

    colour: str
    shape: str
    x: float
    y: float
    area: int


def detect(image: NDArray[np.uint8]) -> list[Found]:
    """Find the objects of a picture.

    Each pixel takes the nearest of the six colours and the background, or ``other`` when none is near; each colour's
    mask is opened and split into connected components, and components too small to see are dropped.

    Args:
        image: uint8 ``(H, H, 3)``, RGB, H at least 48; areas and lengths scale with H.

    Raises:
        ValueError: The picture has another type or shape.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.shape[0] != image.shape[1]:
        raise ValueError(f"expected a square uint8 picture (H, H, 3), got {image.dtype} {image.shape}")
    if image.shape[0] < _MIN_SIDE:
        raise ValueError(f"expected a picture of at least {_MIN_SIDE} pixels a side, got {image.shape[0]}")
    scale = image.shape[0] / _SIZE
    min_area = _MIN_AREA * scale**2
    opening = np.ones((max(1, round(_OPENING * scale)),) * 2, bool)
    distances = np.sqrt(((image[:, :, None].astype(np.float32) - _PALETTE) ** 2).sum(-1))
    labels = distances.argmin(-1)
    labels[distances.min(-1) > _MAX_DISTANCE] = len(_PALETTE)
    found = []
    for k in range(1, len(_NAMES)):
        mask = labels == k
        if mask.sum() >= min_area:
            regions, _ = ndimage.label(ndimage.binary_opening(mask, opening))
            for i, box in enumerate(ndimage.find_objects(regions), start=1):
                region = regions[box] == i
                if region.sum() >= min_area:
                    y, x = (c.mean() + s.start for c, s in zip(np.nonzero(region), box, strict=True))
                    found.append(Found(_NAMES[k], classify(region), float(x), float(y), int(region.sum())))
    return found


def classify(region: NDArray[np.bool_]) -> str:
    """Name the shape of a region cropped to its bounding box: the best of three templates by overlap (IoU)."""
    h, w = region.shape
    if not _ASPECT[0] < w / h < _ASPECT[1]:
        return "blob"
    y, x = np.mgrid[0:h, 0:w] + 0.5
    u, v = 2 * x / w - 1, 2 * y / h - 1
    templates = {
        "circle": u * u + v * v <= 1,
        "square": np.ones_like(region),
        "triangle": 2 * np.abs(u) <= v + 1,
    }
    iou = {name: (region & t).sum() / (region | t).sum() for name, t in templates.items()}
    best = max(iou, key=lambda name: iou[name])
    return best if iou[best] >= _MIN_IOU else "blob"


def score(image: NDArray[np.uint8], prompt: str) -> dict[str, float]:
    """Score a picture against its caption.

    ``content = 2 * credit / (asked + found)``: a soft F1 over a greedy one-to-one match, where a match is worth 1 with
    colour and shape right, 0.5 with the colour only, 0.25 with the shape only. Missing and surplus objects both cost.
    For a position caption ``reward = content * (0.5 + 0.5 * holds)``, where ``holds`` is 1 when both objects were
    matched by colour and their centroids are 8 pixels (of 64) or more apart in the direction asked for.

    Args:
        image: uint8 ``(H, H, 3)``, RGB, H at least 48.
        prompt: A caption of the shapes world.

    Returns:
        ``reward`` in [0, 1] and ``strict``, which is 1 when the reward is 1 and else 0.

    Raises:
        ValueError: The caption is not of this world, or the picture has another type or shape.
    """
    scene, found = parse(prompt), detect(image)
    matches = match(scene.objects, found)
    credit = sum(c for _, c in matches.values())
    content = 2 * credit / (len(scene.objects) + len(found))
    holds = scene.relation is None or _holds(scene.relation, matches, _MIN_OFFSET * image.shape[0] / _SIZE)
    reward = content if holds else 0.5 * content
    return {"reward": reward, "strict": float(reward == 1.0)}


def match(objects: Sequence[tuple[str, str]], found: Sequence[Found]) -> dict[int, tuple[Found, float]]:
    """One to one, greedy, best credit first: index of the object asked for -> (what was found, credit)."""
    credits = [(-_credit(asked, f), i, j) for i, asked in enumerate(objects) for j, f in enumerate(found)]
    matches: dict[int, tuple[Found, float]] = {}
    used: set[int] = set()
    for minus_credit, i, j in sorted(credits):
        if minus_credit < 0 and i not in matches and j not in used:
            matches[i] = (found[j], -minus_credit)
            used.add(j)
    return matches


def _credit(asked: tuple[str, str], found: Found) -> float:
    colour, shape = asked[0] == found.colour, asked[1] == found.shape
    return 1.0 if colour and shape else COLOUR_ONLY if colour else SHAPE_ONLY if shape else 0.0


def _holds(relation: str, matches: dict[int, tuple[Found, float]], offset: float) -> bool:
    if len(matches) < 2 or min(credit for _, credit in matches.values()) < COLOUR_ONLY:
        return False
    a, b = matches[0][0], matches[1][0]
    dx, dy = b.x - a.x, b.y - a.y
    return {"left of": dx, "right of": -dx, "above": dy, "below": -dy}[relation] >= offset
