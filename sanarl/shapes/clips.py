"""Clips of the shapes world in motion: drawing them, and the verifiable reward that reads their pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from sanarl.shapes import scoring
from sanarl.shapes.captions import COLOURS
from sanarl.shapes.drawing import BACKGROUND, SIZE, Uniform, distance
from sanarl.shapes.motion import DIRECTIONS, STILL, MovingScene, parse
from sanarl.shapes.scoring import COLOUR_ONLY, Found

FRAMES, FPS = 9, 8
"""Frames of a clip, and frames a second, when nothing else is asked for."""

MIN_TRAVEL = 8.0
"""Pixels (of 64) over the whole clip from which on an object moves, and below which it stands still."""

LOOKED_AT = 5
"""Frames that scoring looks at: evenly spaced, the first and the last among them; all when there are fewer."""

_MIN_SEEN = 3  # frames of those looked at in which an object must be found for its motion to count
_RADII = {1: (8.5, 13.0), 2: (7.5, 10.5)}  # by number of objects
_TRAVEL = (16.0, 28.0)  # pixels over the whole clip


# --- drawing --------------------------------------------------------------------------------------------------------


def paths(scene: MovingScene, rng: Uniform) -> list[tuple[tuple[float, float], tuple[float, float], float]]:
    """Draw ``(first centre, last centre, radius)`` of each object: inside the picture and apart at every moment.

    Two objects of one caption of kind ``count`` share their radius and their travel.
    """
    n = len(scene.objects)
    while True:
        radii = [rng.uniform(*_RADII[n]) for _ in range(n)]
        travels = [rng.uniform(*_TRAVEL) for _ in range(n)]
        if scene.kind == "count":
            radii, travels = radii[:1] * n, travels[:1] * n
        found = []
        for motion, r, travel in zip(scene.motions, radii, travels, strict=True):
            dx, dy = DIRECTIONS.get(motion, (0, 0))
            margin = 1.2 * r + 2
            x = rng.uniform(margin + max(0, -dx) * travel, SIZE - margin - max(0, dx) * travel)
            y = rng.uniform(margin + max(0, -dy) * travel, SIZE - margin - max(0, dy) * travel)
            found.append(((x, y), (x + dx * travel, y + dy * travel), r))
        if n == 1 or _apart(*found):
            return found


def _apart(
    a: tuple[tuple[float, float], tuple[float, float], float], b: tuple[tuple[float, float], tuple[float, float], float]
) -> bool:
    t = np.linspace(0, 1, 33)[:, None]  # moments of the clip
    gap = (1 - t) * np.subtract(a[0], b[0]) + t * np.subtract(a[1], b[1])
    return bool((np.abs(gap).max(1) >= 1.1 * (a[2] + b[2]) + 3).all())


def render(prompt: str, rng: Uniform, frames: int = FRAMES, size: int = SIZE) -> NDArray[np.uint8]:
    """Draw a clip that shows what a caption asks for: straight lines at a constant speed, never leaving the picture.

    Args:
        prompt: A caption of the shapes world in motion.
        rng: The source of every choice; equal states give equal clips.
        frames: Frames of the clip, at least 2; the way travelled is the same for any number of frames.
        size: Side of the picture in pixels; everything scales with it.

    Returns:
        uint8 ``(frames, size, size, 3)``, RGB.

    Raises:
        ValueError: The caption is not of this world.
    """
    scene, scale = parse(prompt), size / SIZE
    clip = np.full((frames, size, size, 3), rng.uniform(*BACKGROUND), np.float32)
    y, x = np.mgrid[0:size, 0:size].astype(np.float32) + 0.5
    t = np.linspace(0, 1, frames, dtype=np.float32)[:, None, None]  # against (H, W)
    for (colour, shape), (first, last, r) in zip(scene.objects, paths(scene, rng), strict=True):
        cx, cy = ((1 - t) * a * scale + t * b * scale for a, b in zip(first, last, strict=True))
        cover = np.clip(0.5 - distance(shape, x - cx, y - cy, r * scale), 0, 1)[..., None]  # (F, H, W, 1)
        clip = clip * (1 - cover) + np.array(COLOURS[colour], np.float32) * cover
    return clip.round().astype(np.uint8)


# --- scoring --------------------------------------------------------------------------------------------------------


def score(clip: NDArray[np.uint8], prompt: str) -> dict[str, float]:
    """Score a clip against its caption.

    ``reward = content * (0.5 + 0.5 * motion)``.

    ``content`` is the mean, over at most five evenly spaced frames, of what :func:`sanarl.shapes.scoring.score` calls
    content: ``2 * credit / (asked + found)``, a soft F1 in which a match is worth 1 with colour and shape right, 0.5
    with the colour only, 0.25 with the shape only.

    ``motion`` is the mean over the objects asked for of a value in [0, 1]. An object's way ``(dx, dy)`` over the clip
    is the least-squares slope of its centroid, times the length of the clip. With T = 8 pixels (of 64), ``along``
    the part of the way in the direction asked for and ``across`` the part at right angles to it::

        moving:  clip(along / T, 0, 1), halved when |across| > along / 2
        still:   clip(2 - max(|dx|, |dy|) / T, 0, 1)

    and 0 for an object whose colour was found in fewer than three of the frames.

    Args:
        clip: uint8 ``(F, H, H, 3)``, RGB, F at least 3 and H at least 48.
        prompt: A caption of the shapes world in motion.

    Returns:
        ``reward`` in [0, 1] and ``strict``, which is 1 when the reward is 1 and else 0.

    Raises:
        ValueError: The caption is not of this world, or the clip has another type or shape.
    """
    scene = parse(prompt)
    if clip.ndim != 4 or len(clip) < _MIN_SEEN:
        raise ValueError(f"expected a clip (F, H, H, 3) of at least {_MIN_SEEN} frames, got {clip.shape}")
    moments = np.unique(np.linspace(0, len(clip) - 1, LOOKED_AT).round().astype(int))
    found = [scoring.detect(clip[i]) for i in moments]
    matches = [scoring.match(scene.objects, f) for f in found]
    content = np.mean(
        [
            2 * sum(credit for _, credit in m.values()) / (len(scene.objects) + len(f))
            for m, f in zip(matches, found, strict=True)
        ]
    )
    times = moments / (len(clip) - 1)
    limit = MIN_TRAVEL * clip.shape[1] / SIZE
    tracks = track(scene, matches)
    motion = np.mean([_moves(m, times, points, limit) for m, points in zip(scene.motions, tracks, strict=True)])
    reward = float(content * (0.5 + 0.5 * motion))
    return {"reward": reward, "strict": float(reward == 1.0)}


def track(
    scene: MovingScene, matches: Sequence[Mapping[int, tuple[Found, float]]]
) -> list[list[tuple[float, float] | None]]:
    """Follow the objects asked for: the centroid of each in each frame, None where its colour was not found.

    The objects of a pair are told apart by their colour. The two of a count look alike: in each frame they are
    assigned so that together they are nearest to where they were last seen.

    Args:
        scene: What was asked for.
        matches: For each frame, index of the object asked for -> (what was found, credit).
    """
    n = len(scene.objects)
    tracks: list[list[tuple[float, float] | None]] = [[] for _ in range(n)]
    last: list[tuple[float, float] | None] = [None] * n
    for frame in matches:
        seen = [(f.x, f.y) if (f := _found(frame, i)) else None for i in range(n)]
        if scene.kind == "count":
            seen = list(min(permutations(seen), key=lambda order: sum(map(_step, last, order))))
        for i, point in enumerate(seen):
            tracks[i].append(point)
            last[i] = point or last[i]
    return tracks


def _found(frame: Mapping[int, tuple[Found, float]], i: int) -> Found | None:
    found, credit = frame.get(i, (None, 0.0))
    return found if credit >= COLOUR_ONLY else None


def _step(a: tuple[float, float] | None, b: tuple[float, float] | None) -> float:
    return 0.0 if a is None or b is None else float(np.hypot(a[0] - b[0], a[1] - b[1]))


def _moves(
    motion: str, times: NDArray[np.float64], points: Sequence[tuple[float, float] | None], limit: float
) -> float:
    """How well one object moves as asked, in [0, 1]; ``times`` run from 0 to 1 over the clip."""
    seen = [(t, *p) for t, p in zip(times, points, strict=True) if p is not None]
    if len(seen) < _MIN_SEEN:
        return 0.0
    t, x, y = np.array(seen, np.float64).T
    t = t - t.mean()
    dx, dy = (float(t @ c / (t @ t)) for c in (x, y))  # least squares: the way over the whole clip
    if motion == STILL:
        return float(np.clip(2 - max(abs(dx), abs(dy)) / limit, 0, 1))
    ux, uy = DIRECTIONS[motion]
    along, across = dx * ux + dy * uy, abs(dx * uy) + abs(dy * ux)
    return float(np.clip(along / limit, 0, 1)) * (1.0 if across <= along / 2 else 0.5)
