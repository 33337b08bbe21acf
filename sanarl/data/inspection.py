"""Every media file looked at once: what it is, and whether it can be used. What was seen is remembered."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from sanarl.data.home import home, locked
from sanarl.data.parallel import ordered_map
from sanarl.data.spool import Rows

Kind = Literal["good", "bad", "animation", "short"]

VERSION = 1  # of what decoding accepts: a higher one looks at everything again
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Verdict:
    """What a media file is."""

    kind: Kind
    fault: str = ""
    """Why it is not good, naming the file."""
    sha256: str = ""
    """Of the file's bytes."""
    height: int = 0
    width: int = 0
    frames: int = 0
    """Frames that are there, where all of them were counted; else those of a clip; 1 for a picture."""
    seconds: float = 0.0
    claimed: int = 0
    """Frames that a video's container says it has; 0 when it says nothing."""


FIELDS = {field.name for field in fields(Verdict)}


def sha256(path: Path) -> str:
    """Of a file's bytes.

    Raises:
        OSError: If it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def inspect(
    path: Path,
    rows: Sequence[Any],
    look: Callable[[Path], Verdict],
    label: str,
    seen: Callable[[int], None] = lambda _: None,
) -> Rows:
    """Look at every file of a folder, or remember what was seen when its size and time of change are the same.

    Of several processes on a machine one looks and the others then remember. Files that were bad are looked at again.

    Args:
        path: The folder.
        rows: [file relative to the folder, ...] in the order of sorted paths.
        look: What to do with a file; called from several threads, must not raise.
        label: Says what ``look`` depends on, such as the length of clips.
        seen: Called with the number of files that are done.

    Returns:
        One Verdict a row, as JSON.
    """
    name = hashlib.sha256(f"{path.resolve()}\n{VERSION}\n{label}".encode(errors="surrogateescape")).hexdigest()[:32]
    memory = home() / "checked" / f"{name}.jsonl"
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(memory.with_suffix(".lock")))
        except OSError as error:
            _log.warning("%s: cannot be written, so nothing is remembered: %s", memory.parent, error.strerror)
            return _inspect(path, rows, look, seen, iter(()), None)
        with ExitStack() as files:
            old = files.enter_context(memory.open(encoding="utf-8")) if memory.exists() else iter(())
            partial = memory.with_suffix(".partial")
            new = files.enter_context(partial.open("w", encoding="utf-8"))
            try:
                return _inspect(path, rows, look, seen, _remembered(old), new)
            finally:  # also what was done before an interruption
                new.close()
                os.replace(partial, memory)


def _remembered(lines: Any) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if not isinstance(value, dict) or not {"path", "size", "time", "verdict"} <= value.keys():
            continue
        if isinstance(value["verdict"], dict) and value["verdict"].keys() == FIELDS:
            yield value


def _inspect(
    path: Path,
    rows: Sequence[Any],
    look: Callable[[Path], Verdict],
    seen: Callable[[int], None],
    old: Iterator[dict[str, Any]],
    new: Any,
) -> Rows:
    verdicts = Rows()

    def done(entry: dict[str, Any]) -> dict[str, Any]:
        if "verdict" not in entry:
            entry["verdict"] = asdict(look(path / entry["path"]))
        return entry

    entries = ordered_map(done, _joined(path, rows, old), is_quick=lambda entry: "verdict" in entry)
    for number, entry in enumerate(entries, 1):
        verdicts.append(entry["verdict"])
        if new is not None and entry["verdict"]["kind"] != "bad":
            new.write(json.dumps(entry) + "\n")
        seen(number)
    verdicts.close_for_writing()
    return verdicts


def _joined(path: Path, rows: Sequence[Any], old: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Both are sorted by path, so one pass brings them together."""
    remembered = next(old, None)
    base = os.fspath(path)
    for name, *_ in rows:
        entry: dict[str, Any] = {"path": name}
        try:
            state = os.stat(os.path.join(base, name))
            entry |= {"size": state.st_size, "time": state.st_mtime_ns}
        except OSError:
            entry |= {"size": -1, "time": -1}  # looking at it says why
        while remembered is not None and remembered["path"] != name and _parts(remembered["path"]) < _parts(name):
            remembered = next(old, None)
        if remembered is not None and all(remembered[key] == entry[key] for key in ("path", "size", "time")):
            entry["verdict"] = remembered["verdict"]
        yield entry


def _parts(name: str) -> list[str]:
    return str(name).split("/")
