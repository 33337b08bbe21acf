"""What differs between runs: their configurations and the machines they ran on."""

import json
from typing import Any

from sanarl.report.reading import Run, flat

Table = dict[str, Any]
"""``rows``: a name and a text for every run."""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def configurations(runs: list[Run]) -> Table:
    """Every key, its value in each run; ``differs`` tells the rows that are not the same everywhere."""
    keys = list(dict.fromkeys(key for run in runs for key in run.config))
    rows = []
    for key in keys:
        values = [_text(run.config[key]) if key in run.config else "" for run in runs]
        known = {value for value, run in zip(values, runs, strict=True) if run.config}
        rows.append({"name": key, "values": values, "differs": len(known) > 1})
    return {"rows": rows}


def environments(runs: list[Run]) -> Table:
    """Where each run was started last: versions, device, command; and how often it was started."""
    found: list[dict[str, str]] = []
    for run in runs:
        starts = [event for event in run.events if event.get("event") == "start"]
        shown = dict(flat(starts[-1])) if starts else {}
        for name in ("event", "step", "total"):
            shown.pop(name, None)
        command = shown.pop("command", None)
        if isinstance(command, list):
            shown["command"] = " ".join(str(part) for part in command)
        row = {name.removeprefix("packages."): _text(value) for name, value in shown.items() if value is not None}
        if starts:
            row["starts"] = ", ".join(f"{event.get('time')} after step {event.get('step')}" for event in starts)
        found.append(row)
    names = list(dict.fromkeys(name for row in found for name in row))
    return {"rows": [{"name": name, "values": [row.get(name, "") for row in found]} for name in names]}
