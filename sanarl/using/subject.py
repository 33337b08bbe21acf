"""What is sampled, scored or exported: a run at one of its steps, or a model with or without an adapter.

Every subject is one policy with named values for its slot: ``base`` is what training started from (or the model
without the adapter), ``trained`` what came of it. The same kernels and the same noise serve both.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sanarl.config import Config, load, load_saved, preset_names
from sanarl.errors import UserError
from sanarl.models.adapter import add_adapter, read_adapter
from sanarl.models.adapter_file import described
from sanarl.models.load import load_model, preset_of
from sanarl.models.policy import Policy
from sanarl.runtime import memory
from sanarl.runtime.folder import RunFolder
from sanarl.training import settings
from sanarl.training.modelling import build_policy, model_settings
from sanarl.using.saved import Saved, saved_steps, values_of


@dataclass(frozen=True)
class Asked:
    """What a command line names."""

    run: Path | None
    model: str | None
    lora: Path | None
    step: str | None
    """``best``, ``last`` or a number; None: the best where the run knows one, else the last."""
    overrides: tuple[str, ...]
    """``key.path=value`` on top of the run's configuration, or of the preset that a model is sampled by."""


@dataclass(frozen=True)
class Subject:
    """A policy with the values that it can have."""

    config: Config
    policy: Policy
    values: dict[str, list[Tensor]]
    """``base`` and, where there is one, ``trained``."""
    adapter: str | None
    """Where the trained values come from."""
    run: RunFolder | None
    step: int | None

    @property
    def model(self) -> str:
        """The base model's name."""
        return self.config.policy.model_name_or_path

    @property
    def newest(self) -> str:
        """The values that are meant when none are named."""
        return "trained" if "trained" in self.values else "base"


def check(asked: Asked) -> None:
    """Find out what cannot be meant before anything is loaded.

    Raises:
        UserError: when too much, too little or nothing that exists is named.
    """
    if (asked.run is None) == (asked.model is None):
        raise UserError("name either a run (--run FOLDER) or a model (--model NAME), one of the two")
    if asked.run is not None:
        if asked.lora is not None:
            raise UserError("--lora goes with --model; a run has its own adapter")
        _chosen(run_folder(asked.run), asked.step)
    elif asked.step is not None:
        raise UserError("--step goes with a run; a model has no steps")
    elif asked.lora is not None:
        described(asked.lora, "--lora")


def opened(asked: Asked, device: torch.device) -> Subject:
    """Load what was named.

    Raises:
        UserError: when it is not there, not readable, or does not fit together.
    """
    check(asked)
    with memory.explained():
        if asked.run is not None:
            return _run(asked.run, asked.step, asked.overrides, device)
        assert asked.model is not None, "one of the two"
        return _model(asked.model, asked.lora, asked.overrides, device)


def run_folder(path: Path) -> RunFolder:
    """The run in a folder.

    Raises:
        UserError: naming runs nearby, when there is none; when its configuration cannot be read.
    """
    run = RunFolder(path)
    if (path / "config.json").is_file():
        load_saved(path)  # other programs write files of that name too
        return run
    if not path.exists():
        found = "no such folder"
    elif not path.is_dir():
        found = "a file"
    else:
        found = "no config.json in it, so it is no run's folder"
    place = path if path.is_dir() else path.parent
    runs = sorted(place.glob("*/config.json"), key=lambda file: file.stat().st_mtime) if place.is_dir() else []
    near = f"; runs there: {', '.join(str(file.parent) for file in runs[-5:])}" if runs else ""
    raise UserError(f"{path}: {found}; expected a run's folder, such as outputs/PRESET/20261130-191500{near}")


def configuration(asked: Asked) -> Config:
    """The configuration that a subject is sampled by, without loading the model.

    Raises:
        UserError: as ``opened``.
    """
    if asked.run is not None:
        return load_saved(run_folder(asked.run).path, asked.overrides).config
    assert asked.model is not None, "a run or a model"
    name = asked.model
    own = f"{name}-sft-lora"
    preset = own if own in preset_names() else preset_of(name, None)
    return load(preset, (f"policy.model_name_or_path={json.dumps(name)}", *asked.overrides)).config


def check_frames(asked: Asked, frames: int | None) -> None:
    """Find out whether the model draws that many frames.

    Raises:
        UserError: when it draws pictures.
    """
    if frames is not None and frames > 1 and configuration(asked).modality == "image":
        raise UserError(f"--frames: found {frames}; accepted with a model of pictures: 1, or nothing")


def _run(path: Path, step: str | None, overrides: tuple[str, ...], device: torch.device) -> Subject:
    folder = run_folder(path)
    config = load_saved(path, overrides).config
    saved = _chosen(folder, step)
    model = load_model(model_settings(config), device)
    policy = build_policy(config, model)
    values = {"base": [master.detach().clone() for master in policy.masters]}
    if saved is not None:
        values["trained"] = values_of(saved, config, policy, load_saved(path).config.identity())
    adapter = None if saved is None else str(saved.place)
    return Subject(config, policy, values, adapter, folder, 0 if saved is None else saved.step)


def _chosen(folder: RunFolder, asked: str | None) -> Saved | None:
    """The saved step that is meant; None for step 0, which is what training started from."""
    steps = saved_steps(folder)
    if asked == "0":
        return None
    if not steps:
        raise UserError(
            f"{folder.path}: nothing is saved in this run; wait for its first checkpoint, or see train.ckpt "
            "(enable_checkpoint, save_freq, export_safetensors); --step 0 is what it started from"
        )
    there = ", ".join(str(step) for step in steps)
    best = _best(folder)
    if asked in (None, "best"):
        if best in steps:
            return steps[best]
        if asked == "best":
            raise UserError(f"--step best: {folder.path} has no best.json of a saved step; saved steps: {there}")
        return steps[max(steps)]
    if asked == "last":
        return steps[max(steps)]
    if not str(asked).isdecimal() or int(str(asked)) not in steps:
        raise UserError(f"--step {asked}: not saved in {folder.path}; accepted: best, last, 0 (the start), {there}")
    return steps[int(str(asked))]


def _best(folder: RunFolder) -> int | None:
    try:
        return int(json.loads((folder.path / "best.json").read_text(encoding="utf-8"))["step"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder.path / 'best.json'}: cannot be read ({error}); name the step with --step N"
        ) from error


def _model(name: str, lora: Path | None, overrides: tuple[str, ...], device: torch.device) -> Subject:
    config = configuration(Asked(None, name, lora, None, overrides))
    slot = None if lora is None else described(lora, "--lora")
    model = load_model(model_settings(config), device)
    transformer = model.transformer
    if slot is None or lora is None:
        transformer.requires_grad_(True)
        start = {n: p.detach() for n, p in transformer.named_parameters()}
        policy = Policy(model, start, transformer.dtype, kept_sets=False)
        return Subject(config, policy, {"base": list(policy.masters)}, None, None, None)
    try:
        start = add_adapter(transformer, slot, seed=0)
        found = read_adapter(lora, transformer, slot)
    except UserError as error:
        raise UserError(f"--lora {lora}: {error}") from error
    policy = Policy(model, start, settings.DTYPES["float32"], kept_sets=False)
    base = [torch.zeros_like(master) for master in policy.masters]
    trained = [found[n].to(base[0].device) for n in policy.names]
    return Subject(config, policy, {"base": base, "trained": trained}, str(lora), None, None)
