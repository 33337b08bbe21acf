"""A folder of pictures with captions: NAME.json beside NAME.jpg (or .png, .webp, ...)."""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sanarl.data.media import SUFFIXES, cover_crop, decode_image
from sanarl.data.prompts import fault_page, object_fault, read_text
from sanarl.errors import UserError

MAX_JSON_BYTES = 1 << 20


@dataclass(frozen=True)
class Pair:
    """A picture file and its caption."""

    picture: Path
    prompt: str


class ImageFolder(Sequence[dict[str, Any]]):
    """Items ``{"prompt": str, "media": (1, 3, H, W)}`` of a folder, decoded when they are taken.

    Folders are searched to any depth (links are followed), names beginning with a dot are left out, and the order is
    that of the sorted paths. Suffixes may be in any letter case; so may NAME when nothing else matches.

    Args:
        path: The folder.
        size: The (height, width) that pictures are cover-cropped to.
        prompt_key: The key of the caption in each json file.

    Raises:
        UserError: If the folder is missing or holds no pair; or listing every fault of the scan at once: a picture
            without json, a json without picture or with several, bad json, no caption, a blank one.
    """

    def __init__(self, path: str | Path, size: tuple[int, int], prompt_key: str = "prompt"):
        self.path, self.size = Path(path), (int(size[0]), int(size[1]))
        self.pairs = scan(self.path, prompt_key)

    @property
    def prompts(self) -> list[str]:
        """The captions, in order."""
        return [pair.prompt for pair in self.pairs]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> dict[str, Any]:  # type: ignore[override]  # slices are not offered
        pair = self.pairs[index]
        return {"prompt": pair.prompt, "media": cover_crop(decode_image(pair.picture)[None], self.size)}

    def verify(self) -> None:
        """Decode every picture once, so that a damaged one is found before step 1.

        Raises:
            UserError: Listing every picture that cannot be decoded.
        """

        def fault(pair: Pair) -> str | None:
            try:
                decode_image(pair.picture)
            except UserError as error:
                return str(error)
            return None

        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            faults = [text for text in pool.map(fault, self.pairs) if text]
        if faults:
            raise fault_page(f"{self.path}: {len(faults)} of {len(self)} pictures cannot be read", faults)


def scan(path: Path, prompt_key: str = "prompt") -> list[Pair]:
    """The pairs of a folder in the order of their sorted paths; see ImageFolder for the rules and errors."""
    files = walk(path)
    jsons = [f for f in files if f.suffix.lower() == ".json"]
    pictures = [f for f in files if f.suffix.lower() in SUFFIXES]
    matched = _match(jsons, pictures)
    pairs, faults = [], []
    for file in jsons:
        beside = matched[file]
        prompt, fault = read_caption(file, prompt_key)
        if fault:
            faults.append(fault)
        if not beside:
            others = sorted(f.name for f in files if f.parent == file.parent and f.stem == file.stem and f != file)
            hint = f" (found {', '.join(others)})" if others else ""
            faults.append(f"{file}: no picture beside it{hint}; accepted: {file.stem} with {', '.join(SUFFIXES)}")
        elif len(beside) > 1:
            faults.append(f"{file}: several pictures beside it: {', '.join(p.name for p in beside)}; accepted: one")
        elif prompt is not None:
            pairs.append(Pair(beside[0], prompt))
    used = {picture for beside in matched.values() for picture in beside}
    faults += [f"{p}: no {p.stem}.json beside it" for p in pictures if p not in used]
    if faults:
        raise fault_page(f"{path}: {len(faults)} faults", faults)
    if not pairs:
        found = _inventory(files)
        raise UserError(f"{path}: found {found}; accepted: NAME.json beside NAME with {', '.join(SUFFIXES)}")
    return pairs


def captions(path: Path, prompt_key: str = "prompt") -> list[str]:
    """The captions of every json file of a folder, with or without pictures, in the order of their sorted paths.

    Raises:
        UserError: If the folder is missing or holds no json file; or listing every bad one.
    """
    files = walk(path)
    read = [read_caption(f, prompt_key) for f in files if f.suffix.lower() == ".json"]
    faults = [fault for _, fault in read if fault]
    if faults:
        raise fault_page(f"{path}: {len(faults)} faults", faults)
    if not read:
        raise UserError(f'{path}: found {_inventory(files)}; accepted: json files with {{"{prompt_key}": ...}}')
    return [prompt for prompt, _ in read if prompt is not None]


def read_caption(file: Path, key: str) -> tuple[str | None, str | None]:
    """(caption, None) of a json file, or (None, what is wrong with it)."""
    if not file.is_file():
        return None, f"{file}: found something that is not a regular file"
    if file.stat().st_size > MAX_JSON_BYTES:
        return None, f"{file}: found {file.stat().st_size} bytes; accepted: one caption, at most {MAX_JSON_BYTES} bytes"
    try:
        value = json.loads(read_text(file))
    except UserError as error:
        return None, str(error)
    except json.JSONDecodeError as error:
        return None, f"{file}:{error.lineno}: not JSON: {error.msg}"
    except (ValueError, RecursionError) as error:
        return None, f"{file}: not JSON: {error}"
    fault = object_fault(value, key)
    return (None, f"{file}: {fault}") if fault else (value[key].strip(), None)


def walk(path: Path) -> list[Path]:
    """Every file under a folder, sorted by path; hidden names are left out, links followed, loops entered once.

    Raises:
        UserError: If the folder is missing or a folder in it cannot be read.
    """
    if not path.is_dir():
        raise UserError(f"{path}: found {'a file' if path.exists() else 'nothing'}; accepted: a folder")

    def unreadable(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read: {error.strerror}") from error

    files, seen = [], set()
    for folder, folders, names in os.walk(path, onerror=unreadable, followlinks=True):
        state = os.stat(folder)
        if (state.st_dev, state.st_ino) in seen:
            folders.clear()
            continue
        seen.add((state.st_dev, state.st_ino))
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        files += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted(files, key=lambda f: f.relative_to(path).parts)


def _match(jsons: list[Path], pictures: list[Path]) -> dict[Path, list[Path]]:
    """json file -> the pictures of its name: the same stem, or one that differs in letter case when there is none."""
    exact: dict[Path, list[Path]] = {}
    loose: dict[tuple[Path, str], list[Path]] = {}
    own = {f.with_suffix("") for f in jsons}
    for picture in pictures:
        exact.setdefault(picture.with_suffix(""), []).append(picture)
        if picture.with_suffix("") not in own:
            loose.setdefault((picture.parent, picture.stem.casefold()), []).append(picture)
    matched = {}
    for file in jsons:
        matched[file] = exact.get(file.with_suffix(""), [])
        if not matched[file]:
            matched[file] = loose.pop((file.parent, file.stem.casefold()), [])
    return matched


def _inventory(files: list[Path]) -> str:
    counts: dict[str, int] = {}
    for file in files:
        counts[file.suffix.lower() or "(no suffix)"] = counts.get(file.suffix.lower() or "(no suffix)", 0) + 1
    listed = ", ".join(f"{n} {suffix}" for suffix, n in sorted(counts.items(), key=lambda kv: -kv[1])[:5])
    return f"{len(files)} files ({listed})" if files else "no files"
