"""Captions of the shapes world in motion: the grammar, its splits, and the mix of kinds.

============ ==========================================================================================
moving       ``a red circle moving right`` (also: left, up, down)
still        ``a red circle standing still``
count        ``two blue squares moving up``: both go the same way
pair         ``a red circle moving right and a blue square moving left``, in two different colours
============ ==========================================================================================

Colours and shapes are those of :mod:`sanarl.shapes.captions`, and so is the way in which captions are held out.
There are 72 + 18 + 72 + 4320 = 4482 captions.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from sanarl.shapes import captions as pictures
from sanarl.shapes.captions import COLOURS, SHAPES, Captions, Split

DIRECTIONS: Mapping[str, tuple[int, int]] = {"right": (1, 0), "left": (-1, 0), "up": (0, -1), "down": (0, 1)}
"""Unit step of each direction in pixels from the left and from the top."""

STILL = "still"
"""The motion of an object that stays where it is."""

MIX: Mapping[str, float] = {"moving": 0.35, "still": 0.10, "count": 0.25, "pair": 0.30}
"""Share of each kind in training and in evaluation."""

HELD_OUT: Mapping[str, int] = {"moving": 12, "still": 4, "count": 12, "pair": 48}
"""Captions of each kind in ``dev``, and again in ``test``."""

GRAMMAR = (
    "accepted: 'a COLOUR SHAPE moving DIRECTION', 'a COLOUR SHAPE standing still', "
    "'two COLOUR SHAPEs moving DIRECTION' or 'a COLOUR SHAPE moving DIRECTION and a COLOUR SHAPE moving DIRECTION' "
    f"with two different colours; COLOUR: {', '.join(COLOURS)}; SHAPE: {', '.join(SHAPES)}; "
    f"DIRECTION: {', '.join(DIRECTIONS)}"
)

_OBJECT = f"({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})"
_MOVING = f"moving ({'|'.join(DIRECTIONS)})"
_ONE = re.compile(f"a {_OBJECT} (?:{_MOVING}|standing still)")
_TWO = re.compile(f"two {_OBJECT}s {_MOVING}")
_PAIR = re.compile(f"a {_OBJECT} {_MOVING} and a {_OBJECT} {_MOVING}")


@dataclass(frozen=True)
class MovingScene:
    """What a caption asks for.

    Attributes:
        kind: ``moving``, ``still``, ``count`` or ``pair``.
        objects: One ``(colour, shape)`` for each object asked for.
        motions: One of :data:`DIRECTIONS`, or :data:`STILL`, for each object.
    """

    kind: str
    objects: tuple[tuple[str, str], ...]
    motions: tuple[str, ...]


def parse(prompt: str) -> MovingScene:
    """Read a caption; case, surrounding space and a closing full stop do not matter.

    Raises:
        ValueError: The caption is not of this world; the message states the grammar.
    """
    text = prompt.strip().lower().removesuffix(".")
    if m := _ONE.fullmatch(text):
        return MovingScene("moving" if m[3] else "still", ((m[1], m[2]),), (m[3] or STILL,))
    if m := _TWO.fullmatch(text):
        return MovingScene("count", ((m[1], m[2]),) * 2, (m[3],) * 2)
    if (m := _PAIR.fullmatch(text)) and m[1] != m[4]:
        return MovingScene("pair", ((m[1], m[2]), (m[4], m[5])), (m[3], m[6]))
    raise ValueError(f"not a caption of the shapes world in motion: {prompt!r}; {GRAMMAR}")


@cache
def all_prompts() -> Captions:
    """Every caption, by kind, in a fixed order."""
    objects = [f"{c} {s}" for c in COLOURS for s in SHAPES]
    moving = [(o.split()[0], f"a {o} moving {d}") for o in objects for d in DIRECTIONS]
    return {
        "moving": tuple(p for _, p in moving),
        "still": tuple(f"a {o} standing still" for o in objects),
        "count": tuple(f"two {o}s moving {d}" for o in objects for d in DIRECTIONS),
        "pair": tuple(f"{a} and {b}" for ca, a in moving for cb, b in moving if ca != cb),
    }


def said_otherwise(prompt: str) -> str:
    """The caption that asks for the same clip with its objects in the other order, or the caption itself."""
    return " and ".join(reversed(prompt.split(" and ")))


@cache
def _splits() -> dict[str, Captions]:
    return pictures.divide(all_prompts(), HELD_OUT, said_otherwise)


def split(which: Split) -> Captions:
    """Captions of one of three disjoint splits, by kind, under the rules of :func:`sanarl.shapes.captions.split`.

    Raises:
        ValueError: There is no split of that name.
    """
    return pictures.pick(_splits(), which)


def balanced(which: Split, n: int) -> list[str]:
    """The list of ``n`` captions of a split that evaluation uses, kinds in the shares of :data:`MIX`."""
    return pictures.spread(split(which), n, MIX)


def sample(captions: Mapping[str, Sequence[str]], n: int, rng: random.Random) -> list[str]:
    """Draw ``n`` captions, with replacement: first the kind by :data:`MIX`, then one of its captions evenly."""
    return pictures.sample(captions, n, rng, MIX)
