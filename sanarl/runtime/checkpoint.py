"""A checkpoint is a folder ``step_N`` that is either complete or absent.

It holds ``state.pt`` (tensors and plain values, read without unpickling anything else) and ``manifest.json`` with the
size and SHA-256 of that file, the step, and the identity of the configuration that wrote it; tensors of which ranks
hold parts lie beside it (:mod:`sanarl.runtime.parts`). It is written under another name in the same folder, flushed to
the disk and then renamed (:mod:`sanarl.files`). Nothing in it says how many ranks wrote it.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from sanarl.errors import UserError
from sanarl.files import complete_folder, partial_of
from sanarl.runtime import parts
from sanarl.runtime.world import World

FORMAT = "sanarl-checkpoint-1"
ASIDE = "abandoned-"
ALONE = World()


class Stateful(Protocol):
    """Anything that a checkpoint keeps."""

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Take it over."""


def snapshot(state: Mapping[str, Stateful]) -> dict[str, Any]:
    """The state as it is now, in tensors of its own on the CPU, so that training may go on while it is written."""

    def copied(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.detach().to("cpu", copy=True)
        if isinstance(value, Mapping):
            return {key: copied(item) for key, item in value.items()}
        return type(value)(copied(item) for item in value) if isinstance(value, list | tuple) else value

    return {name: copied(part.state_dict()) for name, part in state.items()}


def num_bytes(saved: Any) -> int:
    """Bytes that the tensors of a snapshot take, on the disk as in memory."""
    if isinstance(saved, Tensor):
        return saved.numel() * saved.element_size()
    if isinstance(saved, Mapping):
        return sum(num_bytes(item) for item in saved.values())
    return sum(num_bytes(item) for item in saved) if isinstance(saved, list | tuple) else 0


def write(
    folder: Path, step: int, identity: str, saved: Mapping[str, Any], world: World = ALONE, group: Any = None
) -> Path:
    """Write a snapshot to ``folder/step_N``, completely or not at all.

    Args:
        folder: of checkpoints, on a disk that all ranks see. step: its number. identity: of the configuration.
        saved: the snapshot.
        world: the main rank writes what is whole; where parts are held, every rank calls this.
        group: over which the ranks then exchange; no other thread may use it.

    Raises:
        UserError: when the disk does not take it; what was there before is untouched.
    """
    final = folder / f"step_{step}"
    try:
        state, held = parts.take_out(dict(saved))
        if not world.main:
            parts.write(held, partial_of(final), group)
            return final
        with complete_folder(final) as partial:
            torch.save(state, partial / "state.pt")
            manifest = {"format": FORMAT, "step": step, "identity": identity}
            manifest |= parts.fingerprint(partial / "state.pt")
            if held:
                manifest["parts"] = parts.write(held, partial, group)
            (partial / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as RuntimeError
        raise UserError(f"{final}: the checkpoint could not be written: {error}; earlier ones are untouched") from error
    return final


def complete(folder: Path) -> list[Path]:
    """Checkpoints in ``folder``, oldest first."""
    found = [p for p in folder.glob("step_*") if p.is_dir() and p.name.removeprefix("step_").isdigit()]
    return sorted(found, key=lambda p: int(p.name.removeprefix("step_")))


RESUME_ADVICE = "Choose another checkpoint with --resume PATH, or start anew with --resume never"


def read(
    path: Path, identity: str, world: World = ALONE, example: Tensor | None = None, advice: str = RESUME_ADVICE
) -> dict[str, Any]:
    """The state in the checkpoint ``path``, after every check that can be made.

    Args:
        path: the checkpoint. identity: of the configuration that it must be of.
        world: every rank of it reads. example: a tensor cut over these ranks as those held in parts shall be; None:
            they are read whole.
        advice: what a person may do instead, for errors.

    Raises:
        UserError: when it is damaged, not a checkpoint of this program, or of another configuration.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise ValueError(f"manifest.json does not say {FORMAT}")
        if path.name.removeprefix(ASIDE) != f"step_{manifest.get('step')}":
            raise ValueError(f"manifest.json says it was saved as step_{manifest.get('step')}")
        found = parts.fingerprint(path / "state.pt")
        if found != {key: manifest.get(key) for key in found}:
            raise ValueError("state.pt is not the file that was written (size or SHA-256 differ)")
        parts.check(path, manifest.get("parts", {}), world)
        state = torch.load(path / "state.pt", weights_only=True, map_location="cpu")
        state = parts.put_back(state, path, world, parts.maker(example))
    except Exception as error:
        raise UserError(f"{path}: this checkpoint cannot be used: {error}. {advice}") from error
    if manifest.get("identity") != identity:
        raise UserError(f"{path}: this checkpoint belongs to a run with another configuration. {advice}")
    return state


def restore(path: Path, identity: str, state: dict[str, Stateful], world: World = ALONE) -> None:
    """Load the checkpoint ``path`` into ``state``, laid out over the ranks as ``state`` is; every rank calls this.

    Raises:
        UserError: as ``read``, and when a part is missing or does not fit.
    """
    saved = read(path, identity, world, parts.layout({name: part.state_dict() for name, part in state.items()}))
    for name, part in state.items():
        try:
            part.load_state_dict(saved[name])
        except Exception as error:
            raise UserError(f"{path}: its {name!r} does not fit this run: {error}") from error


def set_aside(folder: Path, step: int) -> list[Path]:
    """Rename what was saved after ``step`` to ``abandoned-step_N``: a run that goes on from ``step`` makes it again.

    Left in place, the abandoned ones would be taken for the newest, by the next resume and by ``prune``.
    """
    moved = []
    for path in complete(folder):
        if int(path.name.removeprefix("step_")) > step:
            moved.append(path.with_name(f"{ASIDE}{path.name}"))
            shutil.rmtree(moved[-1], ignore_errors=True)
            path.rename(moved[-1])
    return moved


def prune(folder: Path, max_keep: int, best: int) -> None:
    """Delete the oldest checkpoints beyond ``max_keep``; 0 or less keeps all, and step ``best`` always stays."""
    if max_keep > 0:
        for old in complete(folder)[:-max_keep]:
            if old.name != f"step_{best}":
                shutil.rmtree(old)
