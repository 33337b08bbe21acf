"""What a page shows, as one JSON document."""

import time
from pathlib import Path
from typing import Any

from sanarl.report import compare, names, pictures, prompts, series
from sanarl.report.reading import Run, read

PAGE_MB = 12
"""No page is larger, in millions of bytes."""
PICTURES_MB = 7
LETTERS = 2000
"""Of a text, such as a prompt or a line of the log; what is longer is cut."""
POINTS = 600
NUMBERS = 240_000
"""Points of all curves of a page together."""


def document(folders: list[Path]) -> dict[str, Any]:
    """Read every run and put together what the page shows.

    Returns:
        ``runs``, ``sections`` (charts with their metrics), ``config``, ``environment``, ``made``.
    """
    runs = [read(folder) for folder in folders]
    columns = [series.columns(run.lines) for run in runs]
    found = list(dict.fromkeys(name for curves in columns for name in curves))
    limit = max(min(POINTS, NUMBERS // max(sum(map(len, columns)), 1)), 50)
    budget = PICTURES_MB * 1_000_000 // len(runs)
    whole: dict[str, Any] = {
        "made": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "runs": [
            _run(run, name, curves, limit, budget)
            for run, name, curves in zip(runs, _names(runs), columns, strict=True)
        ],
        "sections": [
            {
                "key": key,
                "title": title,
                "charts": [
                    {
                        "key": chart.key,
                        "title": chart.title,
                        "metrics": metrics,
                        "bands": chart.bands,
                        "marks": chart.marks,
                        "log": chart.can_log,
                    }
                    for chart, metrics in charts
                ],
            }
            for key, title, charts in names.sections(found)
        ],
        "meanings": {name: names.described(name) for name in found},
        "bands": names.BANDS,
        "config": compare.configurations(runs),
        "environment": compare.environments(runs),
    }
    return {key: _cut(value) for key, value in whole.items()}


def _cut(value: Any) -> Any:
    """The same with no text, but for pictures, longer than ``LETTERS``."""
    if isinstance(value, dict):
        return {(key[:LETTERS] if isinstance(key, str) else key): _cut(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(one) for one in value]
    if isinstance(value, str) and len(value) > LETTERS and not value.startswith("data:image/"):
        return f"{value[:LETTERS]} ..."
    return value


def _names(runs: list[Run]) -> list[str]:
    """A name for each run; equal ones get a number."""
    taken: dict[str, int] = {}
    result = []
    for run in runs:
        taken[run.name] = taken.get(run.name, 0) + 1
        result.append(run.name if taken[run.name] == 1 else f"{run.name} ({taken[run.name]})")
    return result


def _run(run: Run, name: str, curves: dict[str, series.Curve], limit: int, budget: int) -> dict[str, Any]:
    state, text = run.state()
    last = run.step
    rewards = [line for line in run.rewards if line["step"] <= last]  # a step's rewards come before its metrics
    bands = {
        "prompts": series.spread_of_prompts(rewards, limit),
        "error": series.error_of_evaluations(rewards),
        "samples": series.between(curves, "reward/min", "reward/max"),
    }
    notes = list(run.notes)
    held_out = curves.get("eval/reward", {"x": [], "y": []})
    known = [(step, value) for step, value in zip(held_out["x"], held_out["y"], strict=True) if value is not None]
    return {
        "name": name,
        "path": str(run.path),
        "state": state,
        "state_text": text,
        "task": run.config.get("train.train_policy.trainer_type") or run.config.get("train.train_policy.type") or "",
        "model": run.config.get("policy.model_name_or_path") or "",
        "hours": (series.elapsed(run.lines)["y"] or [0])[-1],
        "held_out": [known[0], max(known, key=lambda pair: pair[1]), known[-1]] if known else None,
        "curves": {metric: series.thin(curve, limit) for metric, curve in curves.items()},
        "shown_steps": limit < len(run.lines),
        "elapsed": series.every(series.elapsed(run.lines), limit),
        "band": {key: series.every(band, limit) for key, band in bands.items() if band["x"]},
        "gallery": pictures.gallery(run.path / "samples", budget, notes),
        "sheets": pictures.sheets(run.path / "samples") if budget >= 3_000_000 else [],
        "prompts": {of: prompts.table(rewards, of) for of in ("eval", "train")},
        "log": run.log,
        "warnings": run.warnings,
        "notes": notes,
    }
