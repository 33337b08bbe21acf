"""Captions of the shapes world: the grammar, its splits, and the mix of kinds that training and evaluation use.

============ ==========================================================================================
single       ``a red circle``
count        ``two red circles``, ``three black triangles``
pair         ``a red circle and a blue square``
position     ``a red circle left of a blue square`` (also: right of, above, below); the first is the subject
============ ==========================================================================================

Six colours, three shapes; the two objects of a pair or position caption differ in colour, so which one is which is
decidable from pixels. There are 18 + 36 + 270 + 1080 = 1404 captions.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 220),
    "yellow": (240, 205, 40),
    "purple": (150, 50, 200),
    "black": (25, 25, 25),
}
SHAPES = ("circle", "square", "triangle")
RELATIONS = ("left of", "right of", "above", "below")

Split = Literal["train", "dev", "test"]
Captions = dict[str, tuple[str, ...]]

MIX: Mapping[str, float] = {"single": 0.20, "count": 0.25, "pair": 0.20, "position": 0.35}
"""Share of each kind in training and in evaluation."""

HELD_OUT: Mapping[str, int] = {"single": 4, "count": 8, "pair": 20, "position": 32}
"""Captions of each kind in ``dev``, and again in ``test``."""

GRAMMAR = (
    "accepted: 'a COLOUR SHAPE', 'two|three COLOUR SHAPEs', 'a COLOUR SHAPE and a COLOUR SHAPE' or "
    "'a COLOUR SHAPE left of|right of|above|below a COLOUR SHAPE' with two different colours; "
    f"COLOUR: {', '.join(COLOURS)}; SHAPE: {', '.join(SHAPES)}"
)

_NUMBERS = {"two": 2, "three": 3}
_COLOUR, _SHAPE = "|".join(COLOURS), "|".join(SHAPES)
_COUNT = re.compile(rf"(two|three) ({_COLOUR}) ({_SHAPE})s")
_OBJECTS = re.compile(rf"a ({_COLOUR}) ({_SHAPE})(?: (and|{'|'.join(RELATIONS)}) a ({_COLOUR}) ({_SHAPE}))?")


@dataclass(frozen=True)
class Scene:
    """What a caption asks for.

    Attributes:
        kind: ``single``, ``count``, ``pair`` or ``position``.
        objects: One ``(colour, shape)`` for each object asked for.
        relation: Where the first object lies as seen from the second; None unless ``kind`` is ``position``.
    """

    kind: str
    objects: tuple[tuple[str, str], ...]
    relation: str | None = None


def parse(prompt: str) -> Scene:
    """Read a caption; case, surrounding space and a closing full stop do not matter.

    Raises:
        ValueError: The caption is not of this world; the message states the grammar.
    """
    text = prompt.strip().lower().removesuffix(".")
    if m := _COUNT.fullmatch(text):
        return Scene("count", ((m[2], m[3]),) * _NUMBERS[m[1]])
    m = _OBJECTS.fullmatch(text)
    if m is None or m[1] == m[4]:
        raise ValueError(f"not a caption of the shapes world: {prompt!r}; {GRAMMAR}")
    if m[3] is None:
        return Scene("single", ((m[1], m[2]),))
    pair = ((m[1], m[2]), (m[4], m[5]))
    return Scene("pair", pair) if m[3] == "and" else Scene("position", pair, m[3])


@cache
def all_prompts() -> Captions:
    """Every caption, by kind, in a fixed order."""
    objects = [f"{c} {s}" for c in COLOURS for s in SHAPES]
    pairs = [(a, b) for a in objects for b in objects if a.split()[0] != b.split()[0]]
    return {
        "single": tuple(f"a {o}" for o in objects),
        "count": tuple(f"{n} {o}s" for n in _NUMBERS for o in objects),
        "pair": tuple(f"a {a} and a {b}" for a, b in pairs),
        "position": tuple(f"a {a} {r} a {b}" for a, b in pairs for r in RELATIONS),
    }


def said_otherwise(prompt: str) -> str:
    """The caption that asks for the same picture with its objects in the other order, or the caption itself.

    ``a red circle left of a blue square`` becomes ``a blue square right of a red circle``.
    """
    scene = parse(prompt)
    if scene.kind not in ("pair", "position"):
        return prompt
    opposite = {"left of": "right of", "right of": "left of", "above": "below", "below": "above", None: "and"}
    (c1, s1), (c2, s2) = scene.objects
    return f"a {c2} {s2} {opposite[scene.relation]} a {c1} {s1}"


def divide(
    prompts: Mapping[str, Sequence[str]], held_out: Mapping[str, int], twin: Callable[[str], str]
) -> dict[str, Captions]:
    """Share captions out among ``train``, ``dev`` and ``test``, by kind, in a shuffled order that never changes.

    Args:
        prompts: Captions by kind.
        held_out: How many of each kind ``dev`` gets, and ``test`` as many again.
        twin: The caption that asks for the same in other words, or the caption itself. A twin of a held-out caption
            is left out of ``train``, and twins of ``dev`` out of ``test``.
    """
    rng = random.Random(0)
    parts: dict[str, Captions] = {name: {} for name in get_args(Split)}
    for kind, captions in prompts.items():
        order, n = list(captions), held_out[kind]
        rng.shuffle(order)
        dev = order[:n]
        seen = set(dev) | {twin(p) for p in dev}
        test: list[str] = []
        for p in order[n:]:
            if len(test) < n and p not in seen:
                test.append(p)
                seen |= {p, twin(p)}
        parts["dev"][kind], parts["test"][kind] = tuple(dev), tuple(test)
        parts["train"][kind] = tuple(p for p in order[n:] if p not in seen)
    return parts


def pick(parts: Mapping[str, Captions], which: str) -> Captions:
    """One of the splits.

    Raises:
        ValueError: There is no split of that name.
    """
    if which not in parts:
        raise ValueError(f"no split named {which!r}; accepted: {', '.join(parts)}")
    return dict(parts[which])


@cache
def _splits() -> dict[str, Captions]:
    return divide(all_prompts(), HELD_OUT, said_otherwise)


def split(which: Split) -> Captions:
    """Captions of one of three disjoint splits, by kind, in a fixed (shuffled) order.

    ``train`` is what supervised fine-tuning and reinforcement learning see; hyper-parameters were chosen on ``dev``;
    nothing was ever chosen on ``test``. A caption is in one split only, and a caption whose objects are merely named
    in the other order (:func:`said_otherwise`) never lies in ``train`` when the first is held out, nor in ``test``
    when the first is in ``dev``. The split depends on nothing but this file.

    Raises:
        ValueError: There is no split of that name.
    """
    return pick(_splits(), which)


def shares(n: int, mix: Mapping[str, float] = MIX) -> dict[str, int]:
    """How many of ``n`` captions each kind gets so that the shares of ``mix`` hold (largest remainder)."""
    exact = {kind: n * share for kind, share in mix.items()}
    counts = {kind: int(x + 1e-9) for kind, x in exact.items()}
    for kind in sorted(mix, key=lambda k: counts[k] - exact[k])[: n - sum(counts.values())]:
        counts[kind] += 1
    return counts


def spread(captions: Mapping[str, Sequence[str]], n: int, mix: Mapping[str, float] = MIX) -> list[str]:
    """A fixed list of ``n`` captions, kinds in the shares of ``mix``.

    Kinds stand one after the other; a kind that asks for more captions than there are starts over.
    """
    return [captions[kind][i % len(captions[kind])] for kind, count in shares(n, mix).items() for i in range(count)]


def balanced(which: Split, n: int) -> list[str]:
    """The list of ``n`` captions of a split that evaluation uses, see :func:`spread`."""
    return spread(split(which), n)


def sample(
    captions: Mapping[str, Sequence[str]], n: int, rng: random.Random, mix: Mapping[str, float] = MIX
) -> list[str]:
    """Draw ``n`` captions, with replacement: first the kind by ``mix``, then one of its captions evenly."""
    kinds = rng.choices(list(mix), list(mix.values()), k=n)
    return [rng.choice(captions[kind]) for kind in kinds]
