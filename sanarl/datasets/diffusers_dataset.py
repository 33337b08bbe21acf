"""A folder of pictures or videos with captions (json + jpg or mp4 pairs) for SFT; captions serve RL and validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sanarl.data import settings
from sanarl.data.folder import MediaFolder, captions
from sanarl.data.prompts import read_metadata, read_prompts
from sanarl.errors import UserError

if TYPE_CHECKING:
    from sanarl.config import Config
    from sanarl.config.schema.base import Dataset

LISTS = {".txt": read_prompts, ".jsonl": read_metadata}
PLACEHOLDERS = ("local_dir", "local_validation_dir")  # and whatever begins with path/to/
ACCEPTED = "accepted: a folder of NAME.json + NAME.jpg pairs (also png, webp, bmp, tiff; for video mp4, mov, mkv, webm)"


def get_dataset(config: Config) -> Sequence[dict[str, Any]]:
    """Media of train.train_policy.dataset.local_dir for SFT (each decoded once before training), captions for RL.

    Raises:
        UserError: If the folder is missing, or listing everything that is wrong in it unless [data] on_bad is "skip".
    """
    key = "train.train_policy.dataset.local_dir"
    folder = _folder(config.train.train_policy.dataset, key, ("train",))
    try:
        if config.train.train_policy.type != "sft":
            return _items(folder, config)
        media = MediaFolder(folder, settings.view(config), config.data.caption_keys, config.data.on_bad)
        media.verify()
    except UserError as error:
        raise UserError(f"{key}: {error}") from error
    return media


def get_val_dataset(config: Config) -> Sequence[dict[str, Any]]:
    """The captions of validation.dataset.local_dir: of every json file there, with or without a picture.

    For image-to-video the pairs there, whose clips give their first frame.

    It may also be a file: .txt with a prompt a line, or .jsonl with an object a line.

    Raises:
        UserError: If the folder is missing, or listing everything that is wrong in it.
    """
    key = "validation.dataset.local_dir"
    file = Path(config.validation.dataset.local_dir).expanduser()
    if file.suffix.lower() in LISTS and file.is_file():
        try:
            return LISTS[file.suffix.lower()](file)
        except UserError as error:
            raise UserError(f"{key}: {error}") from error
    folder = _folder(config.validation.dataset, key, ("test", "dev"))
    try:
        if config.policy.diffusers.image_to_video:
            view = replace(settings.view(config), sizes=(config.policy.diffusers.inference_size,))
            return MediaFolder(folder, view, config.data.caption_keys, config.data.on_bad)
        return _items(folder, config)
    except UserError as error:
        raise UserError(f"{key}: {error}") from error


def _items(folder: Path, config: Config) -> list[dict[str, Any]]:
    found = captions(folder, config.data.caption_keys, config.data.on_bad)
    return [{"prompt": prompt, "metadata": {}} for prompt in found]


def _folder(dataset: Dataset, key: str, splits: tuple[str, ...]) -> Path:
    """local_dir, or name when that is a folder and local_dir is not set; a folder is a split as a whole."""
    if dataset.split not in ("", *splits):
        split = key.replace("local_dir", "split")
        raise UserError(
            f"{split}: found {dataset.split!r}, but a folder of pictures has no splits; accepted: nothing, or "
            f"{' or '.join(map(repr, splits))}; another part is another folder in local_dir"
        )
    value = dataset.local_dir
    if not value and dataset.name and Path(dataset.name).expanduser().is_dir():
        value = dataset.name
    if not value:
        name = f" (and name {dataset.name!r} is no folder)" if dataset.name else ""
        raise UserError(f"{key} is not set{name}; {ACCEPTED}")
    path = Path(value).expanduser()
    if not path.exists() and (value in PLACEHOLDERS or value.lstrip("/").startswith("path/to/")):
        raise UserError(f"{key}: found the placeholder {value!r}; {ACCEPTED}\n  for example: --set {key}=./my_pictures")
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing"
        raise UserError(f"{key}: found {found} at {path} ({path.absolute()}); {ACCEPTED}")
    return path
