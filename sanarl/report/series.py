"""Columns of metrics as curves: thinned where there are too many points, with the spread of groups beside them."""

import math
from typing import Any

import numpy as np

Curve = dict[str, list[Any]]
"""``x``: steps; ``y``: values, None where a value is not finite. Bands have ``lo`` and ``hi`` instead of ``y``."""


def number(value: Any) -> float | None:
    """A finite number to seven digits, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.7g}")


def columns(lines: list[dict[str, Any]]) -> dict[str, Curve]:
    """Metric -> its curve over the steps that report it; what never is a number is left out."""
    found: dict[str, Curve] = {}
    for line in lines:
        for name, value in line.items():
            if name == "step" or isinstance(value, bool | str | list | dict) or value is None:
                continue
            curve = found.setdefault(str(name), {"x": [], "y": []})
            curve["x"].append(line["step"])
            curve["y"].append(number(value))
    return found


def thin(curve: Curve, limit: int) -> Curve:
    """At most about ``limit`` of the curve's own points: of every stretch the lowest, the highest and a gap, if any."""
    n = len(curve["x"])
    if n <= limit:
        return curve
    y = np.array([math.nan if value is None else value for value in curve["y"]])
    kept = {0, n - 1}
    for part in np.array_split(np.arange(n), max(limit // 2, 1)):
        finite = part[np.isfinite(y[part])]
        if len(finite):
            kept |= {int(finite[np.argmin(y[finite])]), int(finite[np.argmax(y[finite])])}
        if len(finite) < len(part):
            kept.add(int(part[~np.isfinite(y[part])][0]))
    order = sorted(kept)
    return {name: [values[i] for i in order] for name, values in curve.items()}


def every(curve: Curve, limit: int) -> Curve:
    """At most ``limit`` points, evenly spread, with the last."""
    order = _evenly(len(curve["x"]), limit)
    return {name: [values[i] for i in order] for name, values in curve.items()}


def _evenly(n: int, limit: int) -> list[int]:
    """At most ``limit`` of range(n), with the first and the last."""
    return list(range(n)) if n <= limit else sorted({round(i * (n - 1) / (limit - 1)) for i in range(limit)})


def elapsed(lines: list[dict[str, Any]]) -> Curve:
    """Hours of work until the end of every step, from ``time/step``; pauses between two starts do not count."""
    curve: Curve = {"x": [], "y": []}
    seconds = 0.0
    for line in lines:
        seconds += number(line.get("time/step")) or number(line.get("time/evaluate")) or 0.0
        curve["x"].append(line["step"])
        curve["y"].append(seconds / 3600)
    return curve


def _values(line: dict[str, Any], name: str) -> np.ndarray:
    """A list of numbers as an array, without those that are not finite; empty when it is no such list."""
    try:
        values = np.asarray(line.get(name), dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.zeros(0)
    return values[np.isfinite(values)] if values.ndim == 1 else np.zeros(0)


def spread_of_prompts(rewards: list[dict[str, Any]], limit: int) -> Curve:
    """Between which rewards the middle 80 % of a rollout's prompts lie, by their means, for ``limit`` rollouts."""
    band: Curve = {"x": [], "lo": [], "hi": []}
    rollouts = [line for line in rewards if line.get("of") == "train"]
    for line in (rollouts[i] for i in _evenly(len(rollouts), limit)):
        means = _values(line, "mean")
        if len(means) > 1:
            low, high = np.quantile(means, (0.1, 0.9))
            band["x"].append(line["step"])
            band["lo"].append(float(f"{low:.6g}"))
            band["hi"].append(float(f"{high:.6g}"))
    return band


def error_of_evaluations(rewards: list[dict[str, Any]]) -> Curve:
    """The mean over held-out prompts, less and plus two standard errors."""
    band: Curve = {"x": [], "lo": [], "hi": []}
    for line in rewards:
        if line.get("of") != "eval":
            continue
        means, sizes = _values(line, "mean"), _values(line, "size")
        if len(means) > 1 and len(means) == len(sizes):
            mean, error = float(np.average(means, weights=sizes)), float(means.std(ddof=1)) / math.sqrt(len(means))
            band["x"].append(line["step"])
            band["lo"].append(float(f"{mean - 2 * error:.6g}"))
            band["hi"].append(float(f"{mean + 2 * error:.6g}"))
    return band


def between(curves: dict[str, Curve], low: str, high: str) -> Curve:
    """The band between two metrics, at the steps that have both."""
    band: Curve = {"x": [], "lo": [], "hi": []}
    if low not in curves or high not in curves:
        return band
    tops = dict(zip(curves[high]["x"], curves[high]["y"], strict=True))
    for step, bottom in zip(curves[low]["x"], curves[low]["y"], strict=True):
        if bottom is not None and tops.get(step) is not None:
            band["x"].append(step)
            band["lo"].append(bottom)
            band["hi"].append(tops[step])
    return band
