"""Prompt sets for reinforcement learning: folders with train.txt, or train_metadata.jsonl as GenEval has them.

Known sets (pickscore, ocr, geneval, drawbench, dance_grpo_t2v, vidprom) are fetched or made on first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sanarl.data.fetch import SETS, bring, cached
from sanarl.data.prompts import read_metadata, read_prompts
from sanarl.errors import UserError
from sanarl.importing import nearest

if TYPE_CHECKING:
    from sanarl.config import Config
    from sanarl.config.schema.base import Dataset

ROOT = Path("datasets")  # of the working directory


def get_dataset(config: Config) -> Sequence[dict[str, Any]]:
    """The prompts of train.train_policy.dataset: local_dir/NAME, ./datasets/NAME, local_dir, or a known set.

    The split is "train" unless it says otherwise.

    Raises:
        UserError: If there is no such prompt set, naming the folders looked at, or a line is bad, naming file and line.
    """
    return _read(config.train.train_policy.dataset, "train.train_policy.dataset", "train", config.data.reader)


def get_val_dataset(config: Config) -> Sequence[dict[str, Any]]:
    """The prompts of validation.dataset, split "test" unless it says otherwise.

    Raises:
        UserError: As for get_dataset.
    """
    return _read(config.validation.dataset, "validation.dataset", "test", config.data.reader)


class Prompts(list[dict[str, Any]]):
    """Items, with lines on where they came from."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []


def _read(dataset: Dataset, key: str, default: str, reader: str) -> Prompts:
    splits = [dataset.split] if isinstance(dataset.split, str) else list(dataset.split)
    found = Prompts()
    for split in [s for s in splits if s] or [default]:
        folder = _folder(dataset, key, _files(split, reader), found.notes)
        found += _read_split(folder, split, key, reader)
    return found


def _files(split: str, reader: str) -> dict[str, str]:
    """Reader -> the file that it reads of a split."""
    files = {"geneval": f"{split}_metadata.jsonl", "general_ocr": f"{split}.txt"}
    return {name: file for name, file in files.items() if reader in ("auto", name)}


def _read_split(folder: Path, split: str, key: str, reader: str) -> list[dict[str, Any]]:
    files = _files(split, reader)
    there = [name for name, file in files.items() if (folder / file).is_file()]
    if len(there) > 1:
        raise UserError(
            f"{key}: found both {' and '.join(files.values())} in {folder}; say which is meant: "
            "--set data.reader=general_ocr (the text) or --set data.reader=geneval (the lines of JSON)"
        )
    if there:
        file = folder / files[there[0]]
        return read_metadata(file) if there == ["geneval"] else read_prompts(file)
    present = sorted({p.name for suffix in (".txt", ".jsonl") for p in folder.iterdir() if p.suffix == suffix})
    found = ", ".join(present) or "neither .txt nor .jsonl files"
    accepted = " or ".join(sorted(files.values()))
    raise UserError(f"{key}.split {split!r}: found {found} in {folder}; accepted: {accepted}")


def _folder(dataset: Dataset, key: str, files: dict[str, str], notes: list[str]) -> Path:
    """The first folder that exists among local_dir/NAME, NAME as a path, ./datasets/NAME and local_dir itself.

    When none does, or ./datasets/NAME lacks the split, a known set is taken from the cache, fetched or made.
    """
    name, local = dataset.name, dataset.local_dir
    if not name and not local:
        raise UserError(f"{key}: neither name nor local_dir is set; accepted: a folder with train.txt and test.txt")
    tried = [Path(local).expanduser() / name] if local and name else []
    tried += [ROOT / name] if name else []
    tried += [Path(name).expanduser()] if "/" in name else []
    tried += [Path(local).expanduser()] if local else []
    for folder in tried:
        if folder.is_dir() and (name not in SETS or folder != ROOT / name or _holds(folder, files)):
            return folder
    looked = f"  looked for the folders: {', '.join(str(t) for t in tried)} (from {Path.cwd()})"
    if name in SETS:
        return _known(name, key, files, notes, looked)
    known = sorted({*SETS, *(p.name for p in ROOT.iterdir() if p.is_dir())} if ROOT.is_dir() else SETS)
    raise UserError(
        f"{key}: there is no prompt set {name or local!r}{nearest(name, known)}\n"
        f"{looked}\n"
        "  accepted: a folder with train.txt and test.txt (one prompt a line), or train_metadata.jsonl and\n"
        "  test_metadata.jsonl (one JSON object with the key 'prompt' a line);\n"
        f"  or a name that `sanarl dataset fetch` knows: {', '.join(SETS)}"
    )


def _holds(folder: Path, files: dict[str, str]) -> bool:
    return any((folder / file).is_file() for file in files.values())


def _known(name: str, key: str, files: dict[str, str], notes: list[str], looked: str) -> Path:
    """The cache's folder of a known set, filled when it lacks what is asked for."""
    folder = cached(name)
    if not _holds(folder, files):
        try:
            notes += bring(name)
        except UserError as error:
            raise UserError(f"{key}: {error}\n{looked}") from error
    else:
        notes.append(f"{name}: from {folder}; licence: {SETS[name].licence}")
    return folder
