"""Folders that are either complete or absent."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial-"


def partial_of(final: Path) -> Path:
    """Where ``complete_folder`` writes what becomes ``final``."""
    return final.with_name(f"{PARTIAL}{final.name}")


@contextmanager
def complete_folder(final: Path) -> Iterator[Path]:
    """Give a folder to write into; it gets the name ``final`` once the block ends without an error.

    An older ``final`` is replaced at the last moment and survives any error before it. Files are flushed to the disk
    before the rename, so that a crash of the machine cannot leave the name without the contents.
    """
    partial = partial_of(final)
    aside = final.with_name(f"{PARTIAL}replaced-{final.name}")
    for rest in (partial, aside):
        shutil.rmtree(rest, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for file in partial.rglob("*"):
            if file.is_file():
                _flush(file)
        if final.exists():
            os.replace(final, aside)
        os.replace(partial, final)
        _flush(final.parent)
    except BaseException:
        if aside.exists() and not final.exists():
            os.replace(aside, final)
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_partial(folder: Path) -> None:
    """Delete what an interrupted ``complete_folder`` left; a replaced folder that lost its name gets it back."""
    for rest in folder.glob(f"{PARTIAL}*"):
        final = folder / rest.name.removeprefix(f"{PARTIAL}replaced-")
        if rest.name.startswith(f"{PARTIAL}replaced-") and not final.exists():
            os.replace(rest, final)
        else:
            shutil.rmtree(rest, ignore_errors=True)
