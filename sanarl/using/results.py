"""From scores to means, paired differences and files."""

import csv
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sanarl.maths.paired import Mean, t_interval
from sanarl.using.drawing import Drawing
from sanarl.using.scoring import Plan, Scored

LEVEL = 0.95
METHOD = (
    "Student's t over prompts; a prompt counts once, with the mean of its samples; "
    "a difference is trained - base from the same noise"
)


def summary(scored: Scored, drawing: Drawing, plan: Plan) -> dict[str, Any]:
    """Means with their intervals, and the differences of pairs, of every reward.

    Returns:
        ``{"plan", "interval", "rewards": {name: {"base", "trained", "difference", "better", "worse", "equal"}}}``,
        the last four where there are both arms.
    """
    tables = {arm: _by_prompt(rows, drawing) for arm, rows in scored.items()}
    rewards: dict[str, Any] = {}
    for name in next(iter(tables.values())):
        found: dict[str, Any] = {arm: asdict(t_interval(table[name].mean(1), LEVEL)) for arm, table in tables.items()}
        if len(tables) == 2:
            differences = tables["trained"][name].mean(1) - tables["base"][name].mean(1)
            found["difference"] = asdict(t_interval(differences, LEVEL))
            signs = np.sign(differences)
            found |= {word: int((signs == sign).sum()) for word, sign in (("better", 1), ("worse", -1), ("equal", 0))}
        rewards[name] = found
    return {"plan": asdict(plan), "interval": {"level": LEVEL, "method": METHOD}, "rewards": rewards}


def _by_prompt(rows: dict[int, dict[str, float]], drawing: Drawing) -> dict[str, np.ndarray]:
    """Reward -> (prompts, samples)."""
    names = list(rows[0])
    shape = (len(drawing.prompts), drawing.num_samples)
    return {name: np.array([rows[row][name] for row in range(len(drawing))]).reshape(shape) for name in names}


def write(folder: Path, found: dict[str, Any], scored: Scored, drawing: Drawing) -> None:
    """``result.json`` (the summary) and ``scores.csv`` (a line for every sample)."""
    (folder / "result.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    names = list(found["rewards"])
    with open(folder / "scores.csv", "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["sample", "prompt", *(f"{arm} {name}" for name in names for arm in scored)])
        for row in range(len(drawing)):
            scores = [repr(rows[row][name]) for name in names for rows in scored.values()]
            table.writerow([row, drawing.prompt(row), *scores])


def lines(found: dict[str, Any]) -> list[list[str]]:
    """The table for people: a heading, then a row for every reward."""
    rewards = found["rewards"]
    arms = [arm for arm in ("base", "trained") if arm in next(iter(rewards.values()))]
    table = [["reward", *arms]]
    if len(arms) == 2:
        table[0] += ["trained - base", "better", "worse", "equal"]
    for name, row in rewards.items():
        cells = [name, *(_cell(row[arm]) for arm in arms)]
        if len(arms) == 2:
            cells += [_cell(row["difference"], sign="+"), *(str(row[word]) for word in ("better", "worse", "equal"))]
        table.append(cells)
    return table


def moved(row: dict[str, Any]) -> int:
    """1 or -1 where the interval of a reward's difference lies above or below zero, else 0."""
    if "difference" not in row or not Mean(**row["difference"]).excludes_zero:
        return 0
    return 1 if row["difference"]["mean"] > 0 else -1


def _cell(mean: dict[str, Any], sign: str = "") -> str:
    value = format(mean["mean"], f"{sign}.4g")
    if mean["low"] is None:
        return value
    return f"{value} [{format(mean['low'], f'{sign}.4g')}, {format(mean['high'], f'{sign}.4g')}]"
