"""The rewards of single prompts over the steps."""

import math
from typing import Any

from sanarl.report.series import every

ROWS = 200
POINTS = 40


def table(rewards: list[dict[str, Any]], of: str) -> dict[str, Any]:
    """Every prompt's mean rewards.

    Args:
        rewards: lines of rewards.jsonl.
        of: ``train`` or ``eval``.

    Returns:
        ``rows``: of each prompt ``text``, ``x`` (steps), ``y`` (mean rewards), ``visits``; at most ``ROWS`` of them, of
        more those that rose most and those that fell most. ``count``: how many prompts there are.
    """
    texts: dict[int, str] = {}
    curves: dict[int, dict[str, list[Any]]] = {}
    for line in rewards:
        new = line.get("new")
        if isinstance(new, dict):
            texts |= {int(key): str(text) for key, text in new.items() if str(key).isdigit()}
        if line.get("of") != of or not isinstance(line.get("prompt"), list) or not isinstance(line.get("mean"), list):
            continue
        for prompt, mean in zip(line["prompt"], line["mean"], strict=False):
            if isinstance(prompt, int) and isinstance(mean, int | float) and math.isfinite(mean):
                curve = curves.setdefault(prompt, {"x": [], "y": []})
                curve["x"].append(line["step"])
                curve["y"].append(mean)
    rows = []
    for prompt, curve in curves.items():
        text = texts.get(prompt, f"prompt {prompt} (its text is lost)")
        rows.append({"text": text, "visits": len(curve["x"])} | every(curve, POINTS))
    count = len(rows)
    if count > ROWS:
        rows.sort(key=lambda row: row["y"][-1] - row["y"][0])
        rows = rows[: ROWS // 2] + rows[-ROWS // 2 :]
    return {"rows": rows, "count": count}
