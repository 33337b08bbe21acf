"""What benchmarks at full size share: stages that end in time, models made in half precision, how results are kept."""

import contextlib
import datetime
import gc
import json
import platform
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "diffusers", "transformers", "peft")


class TooLong(BaseException):
    """A stage took longer than its limit; no exception that somebody on the way may take for one of his."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise ``TooLong`` in the block after that time; gradients are on afterwards."""
    import torch

    def late(*_):
        raise TooLong(f"broken off after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        # The signal may come after no_grad has switched the mode and before it guards the way back.
        torch.set_grad_enabled(True)


def measured(result: dict[str, Any], seconds: float, measure: Callable[[], dict[str, Any]]) -> None:
    """Put what ``measure`` finds within the limit into ``result``, or why it failed; the next stage is still wanted."""
    started = time.perf_counter()
    try:
        with limited(seconds):
            result |= measure()
    except (Exception, TooLong) as error:
        traceback.print_exc()
        result["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    result["seconds_in_all"] = round(time.perf_counter() - started, 2)


@contextlib.contextmanager
def half_precision() -> Iterator[None]:
    """Models made in the block are of bfloat16 from the start."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def free() -> None:
    """Give memory back to the card."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def head(benchmark: str, card: str) -> dict[str, Any]:
    """What every result begins with."""
    return {
        "benchmark": benchmark,
        "date": datetime.date.today().isoformat(),
        "card": card,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def place(folder: Path, result: dict[str, Any], ranks: str = "") -> Path:
    """The name that says what a result is of, which begins with ``head``."""
    card = result["card"].replace(" ", "-").lower()
    return folder / f"{result['benchmark']}_{card}{ranks}_{result['date']}.json"


def keep(folder: Path, result: dict[str, Any], ranks: str = "") -> Path:
    """Write a result that begins with ``head`` under its name."""
    path = place(folder, result, ranks)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1).replace(f"{ROOT}/", "")  # where this repository lies is nobody's matter
    path.write_text(text + "\n", encoding="utf-8")
    return path
