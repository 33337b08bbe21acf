"""Any folder of captioned media into the flat one that every loader reads: NNNNNN.json beside NNNNNN.jpg or .mp4.

Work goes on in a hidden folder beside the result, every file under a name that says what it was made from, so that an
interrupted run continues; the result gets its name at the end, whole.
"""

import hashlib
import json
import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sanarl.data.buckets import Size, nearest
from sanarl.data.folder import OnBad, View, nothing_usable, refuse
from sanarl.data.home import busy_lock
from sanarl.data.inspection import sha256
from sanarl.data.media import WHITE, Animation, Colour
from sanarl.data.parallel import ordered_map
from sanarl.data.prepared import earlier, read_json, report_of, to_json, write_whole
from sanarl.data.prompts import fault_page
from sanarl.data.scan import MANIFEST, REPORT, Scan, scan
from sanarl.data.spool import Rows
from sanarl.data.video import Clip, ShortClip, clip_pictures
from sanarl.data.writing import Written, jpeg, mp4
from sanarl.errors import UserError

VERSION = 1
"""Of the bytes that are written: a higher one makes everything anew."""
HEX = 12  # digits of a hash that decide a split


@dataclass(frozen=True)
class Settings:
    """What is made of a folder."""

    sizes: tuple[Size, ...] | None = None
    """(height, width) to crop to, the one of the nearest aspect; None keeps every size."""
    clip: Clip | None = None
    """Make clips; None: pictures."""
    background: Colour = WHITE
    """What shows through transparent pictures."""
    keys: tuple[str, ...] = ("prompt",)
    """Names that the caption may have."""
    on_bad: OnBad = "error"
    """What becomes of files that cannot be used."""
    held_out: float = 0.0
    """Share of the items that go to OUT/test, the others to OUT/train; 0: all go to OUT."""

    @property
    def view(self) -> View:
        """How files are read."""
        return View(self.sizes, self.clip, self.background)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return json.loads(json.dumps({"version": VERSION, **asdict(self)}))

    def of_a_file(self) -> dict[str, Any]:
        """What of it changes what a file becomes."""
        return {key: self.document()[key] for key in ("version", "sizes", "clip", "background")}


@dataclass(frozen=True)
class Outcome:
    """What a call did."""

    report: dict[str, Any]
    made: int
    """Media that this call wrote; the others were there."""
    unchanged: bool
    """Whether the result was there and nothing was done."""


def prepare(
    src: Path, out: Path, settings: Settings, seen: Callable[[int, int], None] = lambda _done, _total: None
) -> Outcome:
    """Make the flat folder ``out`` of the media in ``src``, which is only read.

    Args:
        src: See ``sanarl.data.scan.scan`` for what is found in it.
        out: Absent, empty, or what an earlier call made.
        settings: What is made.
        seen: Told how many of all files are done.

    Raises:
        UserError: If one folder lies in the other, ``out`` holds something else, the disk is full, or under "error"
            files cannot be used: all of them are listed, and the others are kept for the next call.
    """
    out = Path(os.path.abspath(out))
    _check_places(src, out)
    found = scan(src, settings.view.suffixes, settings.keys)
    if not found.rows:
        raise nothing_usable(found, settings.view.suffixes)
    if out.is_dir() and any(out.iterdir()):
        refuse(found, [], "", settings.on_bad)
        return Outcome(earlier(out, found, settings.document()), 0, True)
    work = out.parent / f".partial-{out.name}"
    try:
        with busy_lock(out.parent / f".partial-{out.name}.lock", f"{out}: is being prepared by another process"):
            shelf = _Shelf(work, settings)
            entries, made = _process(found, shelf, settings, seen)
            report = _assemble(found, entries, shelf, settings)
            os.replace(work / "whole", out)
            shutil.rmtree(work)
    except OSError as error:
        hint = "" if error.errno != 28 else "; free some space and say the same again: what is done is kept"
        raise UserError(f"{out}: cannot be written: {error.strerror or error}{hint}") from error
    return Outcome(report, made, False)


def _check_places(src: Path, out: Path) -> None:
    inner, outer = out.resolve(), src.resolve()
    if inner == outer or inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise UserError(f"--out {out}: found a folder inside {src}, or around it; accepted: one beside it")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: found a file; accepted: a folder, or nothing yet")


class _Shelf:
    """Finished files of a run that is under way, each under the key of what it was made from."""

    def __init__(self, path: Path, settings: Settings):
        self.path = path
        marker = path / "settings.json"
        if path.exists() and read_json(marker) != settings.of_a_file():
            shutil.rmtree(path)  # begun with other settings
        (path / "items").mkdir(parents=True, exist_ok=True)
        write_whole(marker, json.dumps(settings.of_a_file()).encode())
        shutil.rmtree(path / "whole", ignore_errors=True)

    def file(self, key: str) -> Path:
        """The finished file of a key, in one of 256 folders."""
        return self.path / "items" / key[:2] / key[2:]

    def put(self, key: str, data: bytes, entry: dict[str, Any]) -> None:
        """Keep a finished file; the entry is written last and says that it is whole."""
        self.file(key).parent.mkdir(exist_ok=True)
        write_whole(self.file(key), data)
        write_whole(self.file(key).with_suffix(".json"), json.dumps(entry).encode())

    def get(self, key: str) -> dict[str, Any] | None:
        """The entry of a finished file."""
        entry = read_json(self.file(key).with_suffix(".json"))
        return entry if isinstance(entry, dict) and self.file(key).is_file() else None


def _process(found: Scan, shelf: _Shelf, settings: Settings, seen: Callable[[int, int], None]) -> tuple[Rows, int]:
    """Entries of all rows in order: what a file became, or why it was skipped."""
    entries, faults, made = Rows(), [], 0
    for done, (entry, is_new) in enumerate(ordered_map(partial(_one, found, shelf, settings), found.rows), 1):
        entries.append(entry)
        made += is_new
        kind = entry.get("kind", "good")
        may_skip = settings.on_bad == "skip" or kind == "animation" or (kind == "short" and settings.view.skips_short)
        if "why" in entry and not may_skip:
            faults.append(entry["why"])
        seen(done, len(found.rows))
    entries.close_for_writing()
    refuse(found, faults, f"{len(faults)} of {len(found.rows)} files cannot be used", settings.on_bad)
    return entries, made


def _one(found: Scan, shelf: _Shelf, settings: Settings, row: list[str]) -> tuple[dict[str, Any], bool]:
    """(entry, whether it was made now) of one file."""
    source, prompt = row
    path = found.path / source
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):  # reading a pipe would wait for ever
            raise UserError(f"{path}: found something that is not a file; accepted: a picture or a video")
        key = hashlib.sha256(f"{source}\0{state.st_size}\0{state.st_mtime_ns}".encode(errors="surrogateescape"))
        if (entry := shelf.get(key.hexdigest())) is not None:
            return {**entry, "prompt": prompt}, False
        digest = sha256(path)
        made = _made(path, settings)
    except Animation as error:
        return {"source": source, "kind": "animation", "why": str(error)}, False
    except ShortClip as error:
        return {"source": source, "kind": "short", "why": str(error)}, False
    except UserError as error:
        return {"source": source, "kind": "bad", "why": str(error)}, False
    except OSError as error:
        return {"source": source, "kind": "bad", "why": f"{path}: cannot be read: {error.strerror}"}, False
    entry = {
        "source": source,
        "source_sha256": digest,
        "sha256": hashlib.sha256(made.data).hexdigest(),
        "bytes": len(made.data),
        "height": made.height,
        "width": made.width,
        "bucket": list(nearest(made.height, made.width, settings.sizes)) if settings.sizes else None,
        "frames": made.frames,
        "fps": settings.clip.fps if settings.clip else None,
        "key": key.hexdigest(),
    }
    shelf.put(key.hexdigest(), made.data, entry)
    return {**entry, "prompt": prompt}, True


def _made(path: Path, settings: Settings) -> Written:
    """The file that a source becomes. Of a clip, memory holds what the encoder looks ahead, not the whole."""
    if settings.clip is None:
        return jpeg(settings.view.read(path))
    return mp4(clip_pictures(path, settings.clip, settings.sizes), settings.clip.fps)


def _assemble(found: Scan, entries: Rows, shelf: _Shelf, settings: Settings) -> dict[str, Any]:
    """The whole result in the folder ``whole``, and its report."""
    whole = shelf.path / "whole"
    suffix = ".jpg" if settings.clip is None else ".mp4"
    counts: Counter[str] = Counter()
    manifests: dict[str, Any] = {}
    try:
        for part in ("train", "test") if settings.held_out else ("",):
            (whole / part).mkdir(parents=True)
            manifests[part] = (whole / part / MANIFEST).open("w", encoding="utf-8", newline="\n")
        for entry in entries:
            if "why" in entry:
                continue
            part = _part(entry["source_sha256"], settings.held_out)
            name = f"{counts[part]:06d}"
            counts[part] += 1
            _link(shelf.file(entry.pop("key")), whole / part / f"{name}{suffix}")
            write_whole(whole / part / f"{name}.json", to_json({"prompt": entry["prompt"]}))
            manifests[part].write(to_json({"file": f"{name}{suffix}", **entry}).decode())
    finally:
        for file in manifests.values():
            file.close()
    if not counts:
        skipped = [entry["why"] for entry in entries if "why" in entry]
        raise fault_page(f"{found.path}: nothing is left of {len(found.rows)} files", skipped)
    report = report_of(found, entries, counts, settings.document())
    write_whole(whole / REPORT, json.dumps(report, indent=1, ensure_ascii=False).encode(errors="backslashreplace"))
    os.sync()
    return report


def _part(digest: str, held_out: float) -> str:
    """By content, so that copies of a file stay together and more files move none."""
    if not held_out:
        return ""
    return "test" if int(digest[:HEX], 16) < held_out * 16**HEX else "train"


def _link(file: Path, name: Path) -> None:
    """Another name for a file; a copy where the file system has no second names."""
    try:
        os.link(file, name)
    except OSError:
        shutil.copyfile(file, name)
