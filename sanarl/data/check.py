"""What a folder of media holds, in numbers, and everything that is wrong with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sanarl.data.findings import Findings, find
from sanarl.data.folder import View, look_at_video
from sanarl.data.inspection import inspect
from sanarl.data.scan import PICTURES, VIDEOS, scan


def check(
    path: Path,
    view: View | None = None,
    keys: tuple[str, ...] = ("prompt",),
    seen: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Findings]:
    """Decode every file, or remember that it was decoded, and count.

    Args:
        path: The folder.
        view: How a run would read it; None: every picture and every video as a whole.
        keys: Names that the caption may have.
        seen: Told how many of all files are done.

    Returns:
        One entry a kind of media that is there; at least one.

    Raises:
        UserError: If the folder is missing or cannot be entered.
    """
    if view is not None:
        return [_check(path, view.suffixes, view.look, view.label, keys, view, seen)]
    pictures = View(None)
    found = [
        _check(path, PICTURES, pictures.look, pictures.label, keys, None, seen),
        _check(path, VIDEOS, look_at_video, "whole videos", keys, None, seen),
    ]
    return [one for one in found if one.good or one.kinds] or found[:1]


def _check(
    path: Path, suffixes: tuple[str, ...], look: Any, label: str, keys: tuple[str, ...], view: View | None, seen: Any
) -> Findings:
    scanned = scan(path, suffixes, keys)
    verdicts = inspect(path, scanned.rows, look, label, lambda done: seen(done, len(scanned.rows)))
    sizes, skips_short = (view.sizes, view.skips_short) if view is not None else (None, False)
    return find(scanned, verdicts, suffixes, sizes, skips_short)
