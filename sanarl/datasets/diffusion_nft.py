"""Prompt sets for reinforcement learning: folders with train.txt, or train_metadata.jsonl as GenEval has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sanarl.data.prompts import read_metadata, read_prompts
from sanarl.errors import UserError
from sanarl.importing import nearest

if TYPE_CHECKING:
    from sanarl.config import Config
    from sanarl.config.schema.base import Dataset

ROOT = Path("datasets")  # of the working directory


def get_dataset(config: Config) -> Sequence[dict[str, Any]]:
    """The prompts of train.train_policy.dataset: local_dir/NAME, ./datasets/NAME or local_dir, split "train".

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


def _read(dataset: Dataset, key: str, default: str, reader: str) -> list[dict[str, Any]]:
    splits = [dataset.split] if isinstance(dataset.split, str) else list(dataset.split)
    splits = [s for s in splits if s] or [default]
    folder = _folder(dataset, key)
    return [item for split in splits for item in _read_split(folder, split, key, reader)]


def _read_split(folder: Path, split: str, key: str, reader: str) -> list[dict[str, Any]]:
    files = {"geneval": folder / f"{split}_metadata.jsonl", "general_ocr": folder / f"{split}.txt"}
    there = [name for name, file in files.items() if file.is_file() and reader in ("auto", name)]
    if len(there) == 2:
        names = " and ".join(file.name for file in files.values())
        raise UserError(
            f"{key}: found both {names} in {folder}; say which is meant: "
            "--set data.reader=general_ocr (the text) or --set data.reader=geneval (the lines of JSON)"
        )
    if there:
        return read_metadata(files["geneval"]) if there == ["geneval"] else read_prompts(files["general_ocr"])
    accepted = " or ".join(file.name for name, file in sorted(files.items()) if reader in ("auto", name))
    present = sorted({p.name for suffix in (".txt", ".jsonl") for p in folder.iterdir() if p.suffix == suffix})
    found = ", ".join(present) or "neither .txt nor .jsonl files"
    raise UserError(f"{key}.split {split!r}: found {found} in {folder}; accepted: {accepted}")


def _folder(dataset: Dataset, key: str) -> Path:
    """The first folder that exists among local_dir/NAME, NAME as a path, ./datasets/NAME and local_dir itself."""
    name, local = dataset.name, dataset.local_dir
    if not name and not local:
        raise UserError(f"{key}: neither name nor local_dir is set; accepted: a folder with train.txt and test.txt")
    tried = []
    if local and name:
        tried.append(Path(local).expanduser() / name)
    if name:
        tried.append(ROOT / name)
        if "/" in name:
            tried.append(Path(name).expanduser())
    if local:
        tried.append(Path(local).expanduser())
    for folder in tried:
        if folder.is_dir():
            return folder
    known = sorted(p.name for p in ROOT.iterdir() if p.is_dir()) if ROOT.is_dir() else []
    raise UserError(
        f"{key}: there is no prompt set {name or local!r}{nearest(name, known)}\n"
        f"  looked for the folders: {', '.join(str(t) for t in tried)} (from {Path.cwd()})\n"
        "  accepted: a folder with train.txt and test.txt (one prompt a line), or train_metadata.jsonl and\n"
        "  test_metadata.jsonl (one JSON object with the key 'prompt' a line)"
    )
