"""The tensors of a checkpoint that ranks hold in parts, through torch.distributed.checkpoint.

Every rank writes the parts that it holds, beside the file with everything else; there each of them leaves a mark with
its shape. They are read in any layout: whole, or cut over any number of ranks. Beside world.py a module that talks to
torch.distributed.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from sanarl.runtime.world import World
from sanarl.shards import is_part, like

FOLDER = "parts"
MARK = "held in parts"

Make = Callable[[torch.Size, torch.dtype], Tensor]
"""Gives an empty tensor of a shape and dtype, in the layout that a tensor held in parts shall be read in."""


def take_out(saved: Any) -> tuple[Any, dict[str, Tensor]]:
    """The state with a mark in the place of each tensor held in parts, and these tensors by their path."""
    parts: dict[str, Tensor] = {}

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, Tensor) and is_part(value):
            parts[path] = value
            return {MARK: list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        if isinstance(value, Mapping):
            return {key: walk(item, f"{path}/{key}") for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(walk(item, f"{path}/{place}") for place, item in enumerate(value))
        return value

    return walk(saved, ""), parts


def put_back(saved: Any, folder: Path, world: World, make: Make) -> Any:
    """The opposite of ``take_out``: read every marked tensor from ``folder``, in the layout that ``make`` gives.

    Every rank of ``world`` calls this.
    """
    found: dict[str, Tensor] = {}

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, dict) and MARK in value:
            found[path] = make(torch.Size(value[MARK]), getattr(torch, value["dtype"]))
            return found[path]
        if isinstance(value, dict):
            return {key: walk(item, f"{path}/{key}") for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(walk(item, f"{path}/{place}") for place, item in enumerate(value))
        return value

    state = walk(saved, "")
    if found:
        with _alone_is_fine():
            dcp.load(found, storage_reader=dcp.FileSystemReader(folder / FOLDER), no_dist=world.size == 1)
    return state


def write(parts: dict[str, Tensor], folder: Path, group: Any) -> dict[str, dict[str, object]]:
    """Write this rank's parts into ``folder``, which is there; returns when every rank has.

    Returns:
        Size and SHA-256 of every file that was written, by any rank; the same on every rank.
    """
    place = folder / FOLDER
    dist.barrier(group)  # the main rank has made the folder
    with _alone_is_fine():
        dcp.save(parts, storage_writer=dcp.FileSystemWriter(place), process_group=group)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    mine = {str(file.relative_to(folder)): fingerprint(file) for file in _files(folder)[rank::size]}
    box: list[Any] = [None] * size
    dist.all_gather_object(box, mine, group=group)
    return {name: found for part in box for name, found in part.items()}


def check(folder: Path, expected: Mapping[str, object], world: World) -> None:
    """Compare the files of parts with what was written, each file on one of the ranks.

    Raises:
        ValueError: naming a file that is not the one that was written.
    """
    for name in sorted(expected)[world.rank :: world.size]:
        if not (folder / name).is_file() or fingerprint(folder / name) != expected[name]:
            raise ValueError(f"{name} is not the file that was written (size or SHA-256 differ)")


def layout(state: Any) -> Tensor | None:
    """Some tensor of a state that is held in parts; they are all cut the same way."""
    return next((value for value in _tensors(state) if is_part(value)), None)


def maker(example: Tensor | None) -> Make:
    """Makes tensors cut as ``example`` is, or whole ones on the CPU."""
    if example is None:
        return lambda shape, dtype: torch.empty(shape, dtype=dtype)
    return lambda shape, dtype: like(torch.empty(shape, dtype=dtype, device=example.device), example)


def fingerprint(file: Path) -> dict[str, object]:
    """Size and SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(file, "rb") as opened:
        while chunk := opened.read(1 << 20):
            digest.update(chunk)
    return {"bytes": file.stat().st_size, "sha256": digest.hexdigest()}


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in (folder / FOLDER).rglob("*") if file.is_file())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


class _alone_is_fine(warnings.catch_warnings):  # used as a function
    """Silences what torch says of a single process, and of a deprecation inside itself."""

    def __enter__(self) -> Any:
        entered = super().__enter__()
        warnings.simplefilter("ignore")
        return entered
