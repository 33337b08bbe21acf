"""GenEval's rules (Ghosh et al. 2023, https://github.com/djghosh13/geneval): what was found against what was asked.

Two verdicts. The published one asks for at least so many objects of a class and looks at the surest of them. The strict
one, with its graded score, asks for exactly so many (https://github.com/yifan123/reward-server).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sanarl.errors import UserError
from sanarl.rewards.scorers.geneval.detectors import Detection

TAGS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
COLORS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
RELATIONS = ("left of", "right of", "above", "below")

MOST_OBJECTS = 16  # of a class
NEAR = 0.1  # of both sizes: closer than that is no relation

Found = Mapping[str, Sequence[Detection]]
Colours = Callable[[str, Sequence[Detection]], list[str]]
"""Class and objects -> the colour of each."""


def sorted_out(detections: Iterable[Detection], threshold: float) -> dict[str, list[Detection]]:
    """Class -> its objects above the threshold, the surest first, at most 16."""
    found: dict[str, list[Detection]] = {}
    for one in sorted(detections, key=lambda d: -d.score):
        if one.score > threshold and len(found.get(one.label, ())) < MOST_OBJECTS:
            found.setdefault(one.label, []).append(one)
    return found


def published(found: Found, metadata: Mapping[str, Any], colours: Colours) -> bool:
    """Whether a picture passes GenEval: enough objects, enough of them right, and nothing excluded."""
    matched: list[Sequence[Detection] | None] = []
    for asked in metadata["include"]:
        objects: Sequence[Detection] | None = found.get(asked["class"], [])[: asked["count"]]
        assert objects is not None
        right = len(objects) == asked["count"]
        if right and "color" in asked:
            right = colours(asked["class"], objects).count(asked["color"]) >= asked["count"]
        if right and "position" in asked:
            right = _placed(objects, asked["position"], matched)
        matched.append(objects if right else None)
    excluded = any(len(found.get(one["class"], ())) >= one["count"] for one in metadata.get("exclude", ()))
    return None not in matched and not excluded


def graded(found: Found, metadata: Mapping[str, Any], colours: Colours) -> tuple[bool, float]:
    """Whether everything is exactly as asked, and the mean over what was asked of how far it is.

    Each object asked adds 1 - |asked - found| / asked for its count, the same for its colour, and 1 for its position. A
    wrong count adds one 0 for colour or position. A wrong position adds a 0 beside its 1, and a position whose target
    is wrong a 0: so the peers count, and rewards must be theirs. The score falls below 0 when far too many are found.
    """
    parts: list[float] = []
    matched: list[Sequence[Detection] | None] = []
    for asked in metadata["include"]:
        objects, count = found.get(asked["class"], []), asked["count"]
        parts.append(_share(count, len(objects)))
        right = len(objects) == count
        if not right and ("color" in asked or "position" in asked):
            parts.append(0.0)
        if right and "color" in asked:
            fitting = colours(asked["class"], objects).count(asked["color"])
            parts.append(_share(count, fitting))
            right = fitting == count
        if right and "position" in asked:
            target = matched[asked["position"][1]]
            right = _placed(objects, asked["position"], matched)
            parts += [1.0] if right else [0.0] if target is None else [0.0, 1.0]
        matched.append(objects if right else None)
    return None not in matched, sum(parts) / len(parts) if parts else 0.0


def _share(asked: int, found: int) -> float:
    return 1 - abs(asked - found) / asked


def _placed(
    objects: Sequence[Detection], position: Sequence[Any], matched: Sequence[Sequence[Detection] | None]
) -> bool:
    """Whether each object stands in the relation to every object of an earlier group, which must be right itself."""
    relation, group = position
    targets = matched[group]
    return targets is not None and all(relation in relations(a, b) for a in objects for b in targets)


def relations(a: Detection, b: Detection) -> set[str]:
    """How the first object stands to the second: up to two of :data:`RELATIONS`.

    The offset of the centres is shortened by a tenth of both sizes; a direction counts when it makes up more than half
    of the whole offset.
    """
    (ax, ay), (bx, by) = a.centre, b.centre
    offset = ax - bx, ay - by
    sizes = a.size[0] + b.size[0], a.size[1] + b.size[1]
    kept = [math.copysign(max(abs(o) - NEAR * s, 0), o) for o, s in zip(offset, sizes, strict=True)]
    if all(abs(k) < 1e-3 for k in kept):
        return set()
    dx, dy = (k / math.hypot(*offset) for k in kept)
    held = {"left of": dx < -0.5, "right of": dx > 0.5, "above": dy < -0.5, "below": dy > 0.5}
    return {name for name, true in held.items() if true}


def checked(metadata: Mapping[str, Any], labels: Sequence[str] | None) -> Mapping[str, Any]:
    """The metadata of a picture.

    Args:
        metadata: One line of train_metadata.jsonl.
        labels: What the detector can find; None: not known.

    Raises:
        UserError: A key is missing or of another form, a class that cannot be found, an unknown colour or relation.
    """
    fault = _fault(metadata, labels)
    if fault is not None:
        raise UserError(f"metadata for GenEval: {fault}")
    return metadata


def _fault(metadata: Mapping[str, Any], labels: Sequence[str] | None) -> str | None:
    if metadata.get("tag") not in TAGS:
        return f"found tag {metadata.get('tag')!r}; accepted: {', '.join(TAGS)}"
    include = metadata.get("include")
    if not isinstance(include, list | tuple) or not include:
        return f"found include {include!r}; accepted: a list of {{class, count, color?, position?}}"
    for row, asked in enumerate([*include, *metadata.get("exclude", ())]):
        if not isinstance(asked, Mapping) or not isinstance(asked.get("class"), str):
            return f"found {asked!r}; accepted: an object with the key class"
        if not isinstance(asked.get("count"), int) or asked["count"] < 1:
            return f"found the count {asked.get('count')!r} of {asked['class']!r}; accepted: a whole number from 1"
        if labels is not None and asked["class"] not in labels:
            return f"the detector knows no {asked['class']!r}; accepted: {', '.join(labels)}"
        if asked.get("color", COLORS[0]) not in COLORS:
            return f"found color {asked['color']!r}; accepted: {', '.join(COLORS)}"
        if "position" in asked and not _is_position(asked["position"], row):
            accepted = f"one of {', '.join(RELATIONS)}, and an earlier row"
            return f"found position {asked['position']!r}; accepted: {accepted}"
    return None


def _is_position(value: Any, row: int) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    relation, group = value
    return relation in RELATIONS and isinstance(group, int) and 0 <= group < row
