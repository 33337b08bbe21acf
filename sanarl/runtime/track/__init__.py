"""Trackers: where a run's numbers go besides metrics.jsonl. Their names are those of docs/metrics.md."""

import json
from pathlib import Path
from typing import NamedTuple, Protocol


class Sample(NamedTuple):
    """A held-out sample in a file."""

    file: Path
    prompt: str
    reward: float | None


class Tracker(Protocol):
    """Takes a step's numbers."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Take the numbers of ``step``."""

    def picture(self, step: int, name: str, path: Path) -> None:
        """Take a picture file."""

    def clips(self, step: int, name: str, paths: list[Path]) -> None:
        """Take mp4 files."""

    def samples(self, step: int, samples: list[Sample]) -> None:
        """Take the samples of an evaluation as a table."""

    def close(self) -> None:
        """The run is over."""


def listed(folder: Path) -> list[Sample]:
    """The samples that ``index.json`` in ``folder`` lists."""
    found = json.loads((folder / "index.json").read_text(encoding="utf-8"))["samples"]
    return [Sample(folder / one["file"], one["prompt"], one["reward"]) for one in found]
