"""What a folder holds: media files with their captions, what is wrong, and what is none of ours."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from sanarl.data.captions import is_table, read_caption, read_table, speaks
from sanarl.data.spool import Rows
from sanarl.errors import UserError

PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
VIDEOS = (".mp4", ".mov", ".mkv", ".webm")
MANIFEST, REPORT = "manifest.jsonl", "report.json"  # what `dataset prepare` writes beside the media
DEEPEST = 200  # levels of folders
NAMED = 20  # foreign files that are named; the others are counted

Tables = list[tuple[str, dict[str, str]]]
"""(folder of a caption table, media file relative to it -> caption), outermost first."""


@dataclass
class Scan:
    """A folder's content; ``rows`` are [media file relative to the folder, caption] in the order of sorted paths."""

    path: Path
    rows: Rows = field(default_factory=Rows)
    faults: list[str] = field(default_factory=list)
    suffixes: Counter[str] = field(default_factory=Counter)
    """How many files of each suffix were seen."""
    foreign: Counter[str] = field(default_factory=Counter)
    """Left out: suffix, or "hidden" -> how many."""
    named: list[str] = field(default_factory=list)
    """The first files of those left out."""

    def leave_out(self, name: str, kind: str) -> None:
        """Count a file that is none of ours, and name it when there are few."""
        self.foreign[kind] += 1
        if len(self.named) < NAMED:
            self.named.append(name)

    @property
    def inventory(self) -> str:
        """What was seen, in words."""
        listed = ", ".join(f"{n} {suffix}" for suffix, n in self.suffixes.most_common(5))
        return f"{self.suffixes.total()} files ({listed})" if self.suffixes else "no files"

    @property
    def notes(self) -> list[str]:
        """A line on what was left out, when something was."""
        if not self.foreign:
            return []
        more = ", ..." if self.foreign.total() > len(self.named) else ""
        counts = ", ".join(f"{n} {kind}" for kind, n in self.foreign.most_common())
        return [f"{self.path}: {self.foreign.total()} files left out ({counts}): {', '.join(self.named)}{more}"]


def scan(
    path: Path, suffixes: Sequence[str] = PICTURES, keys: Sequence[str] = ("prompt",), alone: bool = False
) -> Scan:
    """Pair media files with captions.

    A caption is NAME.json or NAME.txt beside NAME.jpg (json says more and wins), or a row of metadata.jsonl, a .csv or
    a .parquet file in the same folder or above it. Folders are searched to any depth, links followed and loops entered
    once; hidden names are left out. Suffixes may be in any letter case; so may NAME when nothing else matches.
    Memory grows with the names of one folder and the rows of caption tables, not with the number of pairs.

    Args:
        path: The folder.
        suffixes: Of the media wanted, in lower case; media of another kind are left out.
        keys: Names that the caption may have in json files and tables.
        alone: Take json files without media as well; every json file then must hold a caption.

    Raises:
        UserError: If the folder is missing or a folder in it cannot be read.
    """
    if not path.is_dir():
        raise UserError(f"{path}: found {'a file' if path.exists() else 'nothing'}; accepted: a folder")
    found = Scan(path)
    _enter(path, PurePosixPath(), [], _Rules(tuple(suffixes), tuple(keys), alone, found, set()))
    found.rows.close_for_writing()
    return found


@dataclass
class _Rules:
    suffixes: tuple[str, ...]
    keys: tuple[str, ...]
    alone: bool
    found: Scan
    seen: set[tuple[int, int]]


def _enter(folder: Path, at: PurePosixPath, tables: Tables, rules: _Rules) -> None:
    """One folder, its files and folders in the order of their names."""
    if len(at.parts) > DEEPEST:
        raise UserError(f"{folder}: found folders nested deeper than {DEEPEST} levels; accepted: fewer")
    state = folder.stat()
    if (state.st_dev, state.st_ino) in rules.seen:
        return
    rules.seen.add((state.st_dev, state.st_ino))
    files, folders = _names(folder, at, rules.found)
    if MANIFEST in files:
        files = [name for name in files if name not in (MANIFEST, REPORT)]
    tables = [*tables, *_tables(folder, at, files, rules)]
    captioned = dict(_captioned(folder, at, files, tables, rules))
    for name in sorted([*captioned, *folders]):
        if name in captioned:
            rules.found.rows.append([str(at / name), captioned[name]])
        else:
            _enter(folder / name, at / name, tables, rules)


def _names(folder: Path, at: PurePosixPath, found: Scan) -> tuple[list[str], list[str]]:
    files, folders = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    found.leave_out(str(at / entry.name), "hidden")
                elif _is_folder(entry):
                    folders.append(entry.name)
                else:
                    files.append(entry.name)
                    found.suffixes[_suffix(entry.name) or "(no suffix)"] += 1
    except OSError as error:
        raise UserError(f"{folder}: cannot be read: {error.strerror or error}") from error
    return sorted(files), folders


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _end_of_stem(name: str) -> int:
    """Where os.path.splitext cuts the name of a file, in a quarter of the time."""
    at = name.rfind(".")
    return at if at > 0 and name[:at].strip(".") else len(name)


def _suffix(name: str) -> str:
    return name[_end_of_stem(name) :].lower()


def _stem(name: str) -> str:
    return name[: _end_of_stem(name)]


def _tables(folder: Path, at: PurePosixPath, files: list[str], rules: _Rules) -> Iterator[tuple[str, dict[str, str]]]:
    for name in files:
        if not is_table(name):
            continue
        if not speaks(folder / name, rules.keys):
            rules.found.leave_out(str(at / name), _suffix(name))
            continue
        captions: dict[str, str] = {}
        for media, caption, fault in read_table(folder / name, rules.keys):
            plain = os.path.normpath(media.replace("\\", "/")).replace(os.sep, "/") if media else ""
            if fault or caption is None:
                rules.found.faults.append(str(fault))
            elif plain.startswith(("/", "../")) or plain == ".." or not _is_file(folder / plain):
                rules.found.faults.append(f"{folder / name}: {media!r}: found no such file in {folder}")
            elif captions.setdefault(plain, caption) != caption:
                rules.found.faults.append(f"{folder / name}: {media!r}: found two captions; accepted: one")
        yield str(at), captions


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file system takes
        return False


def _captioned(
    folder: Path, at: PurePosixPath, files: list[str], tables: Tables, rules: _Rules
) -> Iterator[tuple[str, str]]:
    """(media file, caption) of one folder; everything else becomes a fault or is left out."""
    found = rules.found
    media = [name for name in files if _suffix(name) in rules.suffixes]
    beside: dict[str, str | None] = {}  # media file -> caption; None: named in a fault already
    used = set(media)
    # A text beside a video says nothing about pictures, and the other way round.
    others = {_stem(name) for name in files if _suffix(name) in PICTURES + VIDEOS} - {_stem(name) for name in media}
    for suffix in (".json", ".txt"):
        texts = [name for name in files if _suffix(name) == suffix]
        for text, names in _match(texts, [m for m in media if m not in beside], media).items():
            if not names and _stem(text) in others:
                used.add(text)
                continue
            caption, fault = (None, None) if suffix == ".txt" and not names else read_caption(folder / text, rules.keys)
            if not names and caption is None and not (rules.alone and fault):
                continue  # none of ours
            used.add(text)
            if not names and rules.alone:
                if caption is not None:
                    yield text, caption
            elif not names:
                found.faults.append(_alone(folder / text, files, rules.suffixes))
            elif len(names) > 1:
                found.faults.append(f"{folder / text}: several media beside it: {', '.join(names)}; accepted: one")
            if fault:
                found.faults.append(fault)
            beside.update(dict.fromkeys(names, caption if len(names) == 1 else None))
    stems = {_stem(name) for name in media}
    for name in files:
        second = _suffix(name) == ".txt" and _stem(name) in stems  # beside media that a json file speaks for
        if name not in used and not second and not is_table(name):
            found.leave_out(str(at / name), _suffix(name) or "(no suffix)")
    for name in media:
        caption = beside[name] if name in beside else _of_tables(str(at / name), tables)
        if caption is not None:
            yield name, caption
        elif name not in beside:
            found.faults.append(f"{folder / name}: no {_stem(name)}.json beside it, nor .txt, nor a row of a table")


def _alone(file: Path, files: list[str], suffixes: tuple[str, ...]) -> str:
    others = sorted(name for name in files if _stem(name) == file.stem and name != file.name)
    hint = f" (found {', '.join(others)})" if others else ""
    what = "video" if suffixes == VIDEOS else "picture"
    return f"{file}: no {what} beside it{hint}; accepted: {file.stem} with {', '.join(suffixes)}"


def _match(texts: list[str], free: list[str], media: list[str]) -> dict[str, list[str]]:
    """Caption file -> the media of its name: the same stem, or one that differs in letter case when there is none."""
    exact: dict[str, list[str]] = {}
    loose: dict[str, list[str]] = {}
    own = {_stem(text) for text in texts}
    taken = {_stem(m) for m in media} - {_stem(m) for m in free}
    for name in free:
        exact.setdefault(_stem(name), []).append(name)
        if _stem(name) not in own:
            loose.setdefault(_stem(name).casefold(), []).append(name)
    matched: dict[str, list[str]] = {}
    for text in texts:
        if _stem(text) in taken:
            continue
        matched[text] = exact.get(_stem(text), []) or loose.pop(_stem(text).casefold(), [])
    return matched


def _of_tables(media: str, tables: Tables) -> str | None:
    """The caption of the innermost table that names a file (path relative to the scanned folder)."""
    for folder, captions in reversed(tables):
        relative = media if folder == "." else media.removeprefix(f"{folder}/")
        if relative in captions:
            return captions[relative]
    return None
