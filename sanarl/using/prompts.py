"""Prompts from a command line: texts, a file, a known set, or a run's own held-out ones."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sanarl.config import Config
from sanarl.data.media import WHITE, decode_cropped
from sanarl.data.module import load as load_module
from sanarl.data.prompts import read_metadata, read_prompts
from sanarl.errors import UserError
from sanarl.training.build import SHAPES, default_module, validation_items
from sanarl.using.subject import Asked, configuration

OWN = "validation"
"""The name of a run's own held-out prompts."""
SETS = "sanarl.datasets.diffusion_nft"


@dataclass(frozen=True)
class Prompts:
    """Prompts in order; the place of one is part of what its noise is drawn by."""

    name: str
    texts: list[str]
    metadata: list[dict[str, Any]]
    first: Tensor | None = None
    """(number of prompts, 1, 3, H, W): the frames that clips start from, of image-to-video."""

    def __len__(self) -> int:
        return len(self.texts)


def named(asked: Asked, name: str, limit: int | None, module: str | None) -> Prompts:
    """The prompts that ``--prompts`` names.

    Args:
        asked: whose configuration says how data are read.
        name: ``validation`` (of a run), a .txt or .jsonl file, or ``SET`` or ``SET:SPLIT``: ``shapes``, a folder below
            datasets/, or a set that ``sanarl dataset fetch`` knows; the split is ``test`` unless it is given.
        limit: only the first ones; None: all (of a run's own, as many as it evaluates).
        module: a dataset module for ``validation``; None: the task's default.

    Raises:
        UserError: when there are none.
    """
    if not name.strip():
        raise UserError(
            "--prompts: found a blank name; accepted: a file (.txt, .jsonl), SET or SET:SPLIT, or validation"
        )
    file = Path(name)
    if file.is_file():
        items = read_metadata(file) if file.suffix == ".jsonl" else read_prompts(file)
    elif file.suffix in (".txt", ".jsonl"):
        found = "a folder" if file.is_dir() else "no such file"
        raise UserError(f"--prompts {name}: {found}; expected one prompt a line (.txt), or JSON objects (.jsonl)")
    elif name == OWN:
        items = _own(asked, module)
    else:
        items = _set(asked, name, limit)
    items = items[:limit]
    first = torch.stack([item["first"] for item in items]) if items and "first" in items[0] else None
    return Prompts(name, [item["prompt"] for item in items], [item["metadata"] for item in items], first)


def starting(asked: Asked, prompts: Prompts, image: Path | None) -> Prompts:
    """The prompts with what their clips start from: ``image`` for all, or what came with them.

    Raises:
        UserError: when the model's clips start from a picture and there is none, or the other way round.
    """
    diffusers = configuration(asked).policy.diffusers
    if image is not None:
        if not diffusers.image_to_video:
            raise UserError("--image: this model makes everything itself; policy.diffusers.image_to_video is false")
        frame = decode_cropped(image, (diffusers.inference_size,), WHITE)
        return replace(prompts, first=frame[None, None].expand(len(prompts), *[-1] * 4))
    if diffusers.image_to_video and prompts.first is None:
        raise UserError("this model's clips start from a picture: name it with --image, or use --prompts validation")
    return prompts


def texts(prompts: list[str]) -> Prompts:
    """Prompts as they were typed.

    Raises:
        UserError: when one is blank.
    """
    if any(not prompt.strip() for prompt in prompts):
        raise UserError("--prompt: found a blank prompt; accepted: a text")
    return Prompts("--prompt", list(prompts), [{} for _ in prompts])


def _own(asked: Asked, module: str | None) -> list[Any]:
    if asked.run is None:
        raise UserError(f"--prompts {OWN}: only a run has held-out prompts of its own; name a file or a set")
    config = configuration(asked)
    if not config.validation.enable:
        raise UserError(
            f"--prompts {OWN}: this run was not evaluated (validation.enable = false); name a file or a set, such as "
            "--prompts shapes, or what to use with --set validation.enable=true --set validation.dataset.name=NAME"
        )
    return validation_items(config, load_module(module or default_module(config)))


def _set(asked: Asked, name: str, limit: int | None) -> list[Any]:
    stem, _, split = name.partition(":")
    config = _pointed_at(asked, stem, split or "test", limit)
    try:
        return validation_items(config, load_module(SHAPES if stem == "shapes" else SETS))
    except UserError as error:
        raise UserError(f"--prompts {name}: {error}") from error


def _pointed_at(asked: Asked, name: str, split: str, limit: int | None) -> Config:
    """The configuration with that set as its held-out one."""
    wanted = {"enable": True, "dataset": {"name": name, "local_dir": "", "split": split}}
    values = wanted | ({} if limit is None else {"num_prompts": limit})
    config = configuration(asked)
    tree = json.loads(config.model_dump_json())
    tree["validation"] |= values
    if limit is None:
        tree["validation"]["num_prompts"] = None
    return Config.model_validate_json(json.dumps(tree))
