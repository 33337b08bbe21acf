"""GenEval's prompts by their published recipe (Ghosh et al., arXiv:2310.11513): drawn by a seed, nothing is downloaded.

A line is ``{"tag", "include": [{"class", "count", "color", "position"}], "exclude", "prompt"}``, as scorers read it.
"""

import random
from collections.abc import Set
from typing import Any

from sanarl.data.prompts import listed

CLASSES = listed(
    """
    person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, stop sign,
    parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, backpack, umbrella,
    handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove,
    skateboard, surfboard, tennis racket, bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple,
    sandwich, orange, broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, dining
    table, toilet, tv, laptop, computer mouse, tv remote, computer keyboard, cell phone, microwave, oven,
    toaster, sink, refrigerator, book, clock, vase, scissors, teddy bear, hair drier, toothbrush
    """
)
"""The 80 classes of COCO in GenEval's words."""
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
POSITIONS = ("left of", "right of", "above", "below")
NUMBERS = ("two", "three", "four")

MIX = {"position": 7, "counting": 5, "color_attr": 3, "colors": 1, "two_object": 1}
"""Parts of the training set, as Flow-GRPO (arXiv:2505.05470) trains on it."""
TRAIN = 50_000
TEST_PER_TAG = 20
Line = dict[str, Any]


def test_set() -> list[Line]:
    """The small held-out set that ships: 20 lines of each of the six tags, single objects included."""
    rng = random.Random("geneval test")
    lines: list[Line] = []
    for tag in ("single_object", *sorted(MIX)):
        lines += _distinct(tag, TEST_PER_TAG, rng, set())
    return lines


def train_set(size: int = TRAIN, seed: int = 0, exclude: Set[str] = frozenset()) -> list[Line]:
    """Training lines in a drawn order; none has a prompt of ``test_set`` or of ``exclude``.

    Args:
        size: How many.
        seed: Another one gives another set of the same kind.
        exclude: Prompts to leave out, such as those of the published test set.
    """
    rng = random.Random(f"geneval train {seed}")
    barred = exclude | {line["prompt"] for line in test_set()}
    tags = rng.choices(list(MIX), list(MIX.values()), k=size)
    lines = []
    for tag in tags:
        line = _draw(tag, rng)
        while line["prompt"] in barred:
            line = _draw(tag, rng)
        lines.append(line)
    return lines


def _distinct(tag: str, size: int, rng: random.Random, seen: set[str]) -> list[Line]:
    lines: list[Line] = []
    while len(lines) < size:
        line = _draw(tag, rng)
        if line["prompt"] not in seen:
            seen.add(line["prompt"])
            lines.append(line)
    return lines


def _draw(tag: str, rng: random.Random) -> Line:
    """One line of a tag. Persons get no colour, as in the recipe."""
    first, second = rng.sample(CLASSES if tag not in ("colors", "color_attr") else CLASSES[1:], 2)
    one, other = rng.sample(COLOURS, 2)
    if tag == "single_object":
        return _line(tag, [{"class": first, "count": 1}], _a(first))
    if tag == "two_object":
        return _line(
            tag, [{"class": first, "count": 1}, {"class": second, "count": 1}], f"{_a(first)} and {_a(second)}"
        )
    if tag == "counting":
        number = rng.randrange(len(NUMBERS)) + 2
        line = _line(tag, [{"class": first, "count": number}], f"{NUMBERS[number - 2]} {_plural(first)}")
        return {**line, "exclude": [{"class": first, "count": number + 1}]}
    if tag == "colors":
        return _line(tag, [{"class": first, "count": 1, "color": one}], f"{_a(one)} {first}")
    if tag == "color_attr":
        include = [{"class": first, "count": 1, "color": one}, {"class": second, "count": 1, "color": other}]
        return _line(tag, include, f"{_a(one)} {first} and {_a(other)} {second}")
    where = rng.choice(POSITIONS)
    include = [{"class": second, "count": 1}, {"class": first, "count": 1, "position": [where, 0]}]
    return _line("position", include, f"{_a(first)} {where} {_a(second)}")


def _line(tag: str, include: list[dict[str, Any]], text: str) -> Line:
    return {"tag": tag, "include": include, "prompt": f"a photo of {text}"}


def _a(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _plural(name: str) -> str:
    """The recipe's: "knifes" and "sheeps" are among its prompts."""
    return f"{name}es" if name.endswith("s") else f"{name}s"
