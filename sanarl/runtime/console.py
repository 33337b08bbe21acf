"""What a run says to the person who watches it: lines on stderr and in log.txt, and a bar when there is a terminal."""

import sys
import time
from pathlib import Path
from typing import Literal, Self

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Voice = Literal["quiet", "normal", "verbose"]
"""quiet: warnings only; verbose: every number of a step."""

SHOWN = ("loss", "reward/mean", "eval/reward", "guards/reward", "zero_std_ratio", "grad_norm", "lr")


class Console:
    """Lines and a progress bar for one run. A silent one (``file=None``, ``quiet=True``) serves other ranks."""

    def __init__(self, file: Path | None, quiet: bool = False, voice: Voice = "normal"):
        """Append lines to ``file``; say nothing on the terminal when ``quiet``, else as much as ``voice`` asks."""
        self._file, self._quiet, self._voice = file, quiet, voice
        self._rich = RichConsole(stderr=True, highlight=False, markup=False)
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def line(self, text: str) -> None:
        """One line for the person and the log."""
        if self._file is not None:
            with open(self._file, "a", encoding="utf-8") as log:
                log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        if self._quiet or (self._voice == "quiet" and not text.startswith("warning")):
            return
        if self._bar is not None:
            self._bar.console.print(text, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def progress(self, done: int, total: int) -> None:
        """Move the bar; without a terminal there is none."""
        if self._quiet or self._voice == "quiet" or not self._rich.is_terminal:
            return
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=self._rich,
            )
            self._bar.add_task("training", total=total, completed=done)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def metrics(self, step: int, total: int, metrics: dict[str, float]) -> None:
        """A step's most telling numbers as one line."""
        names = metrics if self._voice == "verbose" else [name for name in SHOWN if name in metrics]
        shown = [f"{name} {metrics[name]:.4g}" for name in names]
        seconds = metrics.get("time/step")
        if seconds is not None:
            shown.append(f"{seconds:.2f} s")
        self.line(f"step {step}/{total}  " + "  ".join(shown))
