"""Trackers: where a run's numbers go besides metrics.jsonl."""

from pathlib import Path
from typing import Protocol


class Tracker(Protocol):
    """Takes a step's numbers."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Take the numbers of ``step``."""

    def picture(self, step: int, name: str, path: Path) -> None:
        """Take a picture file."""

    def clips(self, step: int, name: str, paths: list[Path]) -> None:
        """Take mp4 files."""

    def close(self) -> None:
        """The run is over."""
