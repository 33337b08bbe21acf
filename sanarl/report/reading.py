"""A run's folder as it was found: finished, running, killed, resumed, or cut short in the middle of a line."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sanarl.errors import UserError

LOG_LINES = 40
LOG_BYTES = 4_000_000
"""Of the end of log.txt that is looked at for warnings."""


@dataclass(frozen=True)
class Run:
    """What a folder holds; ``notes`` says what could not be read."""

    path: Path
    lines: list[dict[str, Any]]
    """Of metrics.jsonl, one a step, in order."""
    rewards: list[dict[str, Any]]
    """Of rewards.jsonl."""
    events: list[dict[str, Any]]
    """Of events.jsonl: starts and ends."""
    config: dict[str, Any]
    """Resolved values by their dotted keys."""
    log: list[str]
    """The last lines of log.txt."""
    warnings: list[str]
    """Its last lines that warn."""
    notes: list[str]

    @property
    def step(self) -> int:
        """The last step that was logged."""
        return self.lines[-1]["step"] if self.lines else 0

    @property
    def total(self) -> int | None:
        """Steps that the run is to take, where that is known."""
        known = [event["total"] for event in self.events if isinstance(event.get("total"), int)]
        return known[-1] if known else self.config.get("train.max_num_steps")

    @property
    def name(self) -> str:
        """The experiment's name, else the last two folders of the path."""
        given = self.config.get("logging.experiment_name")
        return str(given) if given else "/".join(self.path.absolute().parts[-2:]).lstrip("/")

    def state(self) -> tuple[str, str]:
        """(one of finished, running, stopped, killed, unknown; the same in words)."""
        steps = f"{self.step} of {self.total} steps" if self.total else f"{self.step} steps"
        last = self.events[-1] if self.events else {}
        if _is_locked(self.path / ".lock"):
            return "running", f"running: {steps}"
        if last.get("event") == "end":
            why = str(last.get("why"))
            if why == "finished":
                return "finished", f"finished: {steps}"
            return "stopped", f"stopped after {steps}: {why}"
        if self.total is not None and self.step >= self.total:
            return "finished", f"finished: {steps}"
        if last.get("event") == "start":
            return "killed", f"killed or still running on another machine: {steps}"
        return "unknown", steps


def resolve(path: Path) -> tuple[Path, str | None]:
    """The run's folder that ``path`` stands for, and a remark: a folder of runs stands for its newest one.

    Raises:
        UserError: when there is none.
    """
    if not path.is_dir():
        what = "a file" if path.exists() else "nothing"
        raise UserError(f"sanarl report {path}: found {what}; accepted: the folder of a run, or a folder of runs")
    if _is_run(path):
        return path, None
    below = sorted((p for p in path.glob("*/") if _is_run(p)), key=_touched)
    if not below:
        holds = ", ".join(sorted(p.name for p in path.iterdir())[:5]) or "nothing"
        raise UserError(
            f"sanarl report {path}: no metrics.jsonl, and no config.json beside a log.txt, there or one folder below "
            f"(it holds {holds}); accepted: the folder of a run, which `sanarl train` names when it starts"
        )
    return below[-1], f"{path} holds {len(below)} run(s); taking the newest, {below[-1].name}"


def _is_run(path: Path) -> bool:
    """Other programs write a config.json too; a run has a log or events beside it."""
    beside = any((path / name).is_file() for name in ("events.jsonl", "log.txt"))
    return (path / "metrics.jsonl").is_file() or ((path / "config.json").is_file() and beside)


def _touched(path: Path) -> float:
    return max((p.stat().st_mtime for p in (path / "metrics.jsonl", path / "config.json") if p.is_file()), default=0.0)


def read(path: Path) -> Run:
    """Read whatever is there; nothing that is missing or damaged is an error.

    Raises:
        UserError: when a file may not be read.
    """
    notes: list[str] = []
    try:
        lines = _by_step(_json_lines(path / "metrics.jsonl", notes), notes)
        rewards = [line for line in _json_lines(path / "rewards.jsonl", notes) if _has_step(line)]
        events = list(_json_lines(path / "events.jsonl", notes))
        config = _config(path / "config.json", notes)
        log = _end(path / "log.txt").splitlines()
    except PermissionError as error:
        raise UserError(f"sanarl report {path}: {error.filename} may not be read by this user") from error
    if not lines:
        notes.append("metrics.jsonl has no step yet")
    warnings = [line for line in log if " warning: " in line]
    return Run(path, lines, rewards, events, config, log[-LOG_LINES:], warnings[-LOG_LINES:], notes)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _end(path: Path) -> str:
    if not path.is_file():
        return ""
    with open(path, "rb") as file:
        file.seek(max(path.stat().st_size - LOG_BYTES, 0))
        return file.read().decode("utf-8", errors="replace")


def _json_lines(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Every line that is a JSON table; the others are counted."""
    damaged = 0
    for line in _text(path).splitlines():
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            yield found
        else:
            damaged += bool(line.strip())
    if damaged:
        notes.append(f"{path.name}: {damaged} line(s) are damaged and left out")


def _has_step(line: dict[str, Any]) -> bool:
    return type(line.get("step")) is int and line["step"] >= 0


def _by_step(found: Iterator[dict[str, Any]], notes: list[str]) -> list[dict[str, Any]]:
    """One line a step in order; of several the last, which a resumed run wrote."""
    lines: dict[int, dict[str, Any]] = {}
    twice = 0
    for line in found:
        if _has_step(line):
            twice += line["step"] in lines
            lines[line["step"]] = line
    if twice:
        notes.append(f"metrics.jsonl: {twice} step(s) stand there twice; the later line counts")
    return [lines[step] for step in sorted(lines)]


def _config(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        return dict(flat(json.loads(_text(path) or "{}").get("config", {})))
    except (ValueError, AttributeError, RecursionError):
        notes.append("config.json cannot be read")
        return {}


def flat(node: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every leaf of nested tables."""
    for name, value in node.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _is_locked(path: Path) -> bool:
    """Whether a process of this machine holds the folder's lock; asked of the kernel, so as not to take it."""
    try:
        stat = path.stat()
        device = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
        with open("/proc/locks", encoding="ascii") as locks:
            return any(device in line.split() for line in locks)
    except OSError:
        return False
