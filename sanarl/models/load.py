"""Loading a model: the embedded default, a local folder, or a hub id."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from diffusers import DiffusionPipeline, SanaImageToVideoPipeline
from diffusers.utils import logging as diffusers_logging
from torch import nn
from transformers.utils import logging as transformers_logging

from sanarl.errors import UserError, first_line
from sanarl.models import hub, native_files, tiny
from sanarl.models.base import FlowModel, Use
from sanarl.models.checkpointing import Checkpointing, set_checkpointing
from sanarl.models.families import FAMILIES, Modality


@dataclass(frozen=True)
class ModelSettings:
    """Which model, in which dtypes, at which size; names as in the configuration's [policy]."""

    name_or_path: str
    revision: str | None
    transformer_dtype: torch.dtype
    other_dtype: torch.dtype
    """Of text encoder and autoencoder."""
    size: tuple[int, int]
    modality: Modality
    frames: int
    """Of a sample; 1 for pictures."""
    max_prompt_length: int
    complex_human_instruction: bool
    motion_score: int | None
    offload: bool
    vae_tiles: bool | Literal["auto"]
    checkpointing: Checkpointing
    image_to_video: bool = False
    """Clips start from a picture."""
    vae_dtype: torch.dtype | None = None
    """Of the autoencoder; None: ``other_dtype``."""
    base_pipeline: str | None = None
    """Where a native checkpoint gets text encoder and autoencoder from."""
    native_config: str | None = None
    """NVlabs/Sana's YAML that the checkpoint must agree with."""
    guidance_scale: float = 1.0
    """For models that take it as an input."""

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        """As ``from_pretrained`` takes them."""
        vae = {} if self.vae_dtype is None else {"vae": self.vae_dtype}
        return {"transformer": self.transformer_dtype, **vae, "default": self.other_dtype}


def load_model(settings: ModelSettings, device: torch.device) -> FlowModel:
    """Load and wrap a model.

    Raises:
        UserError: when it is not found, not readable, of a family that is not there, or asked for in a revision
            that it cannot have.
    """
    name = settings.name_or_path
    if settings.revision is not None and (name in tiny.NAMES or Path(name).exists()):
        raise UserError(
            f"policy.model_revision: found {settings.revision!r}, but {name} is no hub id and has no revisions; "
            "leave the key out"
        )
    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    if name in tiny.NAMES:
        pipeline = tiny.load_pipeline(name, settings.dtypes)
    elif native_files.is_native(name):
        base = _base(settings)
        pipeline = native_files.pipeline(name, settings.revision, base, settings.native_config, settings.dtypes)
    else:
        pipeline = _from_pretrained(settings)
    return wrapped(pipeline, settings, device)


def wrapped(pipeline: Any, settings: ModelSettings, device: torch.device) -> FlowModel:
    """Wrap a pipeline that is loaded already, in the dtypes that shall be computed in.

    Raises:
        UserError: when its family does not make what is asked for, or not in that size.
    """
    family = FAMILIES[type(pipeline).__name__]
    family.check(settings.modality, settings.name_or_path)
    pipeline = _started_from(pipeline, settings)
    use = Use(
        size=settings.size,
        device=device,
        frames=settings.frames,
        max_prompt_length=settings.max_prompt_length,
        guidance_scale=settings.guidance_scale,
        complex_human_instruction=settings.complex_human_instruction,
        motion_score=settings.motion_score,
        offload=settings.offload and device.type != "cpu",
        vae_tiles=settings.vae_tiles,
    )
    model: FlowModel = family.wrapper()(pipeline, use)
    set_checkpointing(model.transformer, settings.checkpointing)
    return model


def _started_from(pipeline: Any, settings: ModelSettings) -> Any:
    """The pipeline that takes a picture to start from, when one is asked for: the parts are the same."""
    if settings.image_to_video:
        return SanaImageToVideoPipeline(**pipeline.components)
    if isinstance(pipeline, SanaImageToVideoPipeline):
        raise UserError(
            f"policy.diffusers.image_to_video: false, but {settings.name_or_path} is a SanaImageToVideoPipeline, whose "
            "clips start from a picture; set it to true"
        )
    return pipeline


def load_transformer(settings: ModelSettings, device: torch.device) -> nn.Module:
    """The transformer alone, as ``load_model`` has it, frozen.

    Raises:
        UserError: when it cannot be loaded.
    """
    name, dtype = settings.name_or_path, settings.transformer_dtype
    if name in tiny.NAMES:
        found = tiny.load_pipeline(name, settings.dtypes).transformer
    elif native_files.is_native(name):
        found = native_files.transformer(name, settings.revision, _base(settings), settings.native_config, dtype)
    else:
        module, kind = _index(name, settings.revision)["transformer"]
        loader = getattr(import_module(module), kind)
        try:
            found = loader.from_pretrained(
                name,
                subfolder="transformer",
                revision=settings.revision,
                dtype=dtype,
                local_files_only=_local_only(name, settings.revision),
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise _unloadable(name, error) from error
    return found.requires_grad_(False).eval().to(device)


def preset_of(name: str, revision: str | None) -> str:
    """The preset whose sampling settings a model has, from its index alone.

    Raises:
        UserError: when there is no such model, or it is of a family that is not there.
    """
    kind = "SanaPipeline" if native_files.is_native(name) else _kind(name, revision)
    return FAMILIES[kind].preset


def _base(settings: ModelSettings) -> str:
    if settings.base_pipeline is None:
        raise UserError(
            f"policy.base_pipeline: missing: {settings.name_or_path} has no text encoder and no autoencoder"
        )
    return settings.base_pipeline


def _kind(name: str, revision: str | None) -> str:
    """The class of a pipeline that is no embedded one."""
    kind = str(_index(name, revision).get("_class_name"))
    if kind not in FAMILIES:
        raise UserError(
            f"policy.model_name_or_path: {name} is a {kind}; families that can be trained: "
            f"{', '.join(sorted(FAMILIES))}"
        )
    return kind


def _from_pretrained(settings: ModelSettings) -> Any:
    name = settings.name_or_path
    _kind(name, settings.revision)
    # What a pipeline was saved without must be named, or diffusers misses it.
    absent = {part: None for part, found in _index(name, settings.revision).items() if found == [None, None]}
    try:
        return DiffusionPipeline.from_pretrained(
            name,
            **absent,
            revision=settings.revision,
            dtype=settings.dtypes,
            local_files_only=_local_only(name, settings.revision),
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise _unloadable(name, error) from error


def _index(name: str, revision: str | None) -> Mapping[str, Any]:
    """The pipeline's model_index.json."""
    folder = Path(name)
    if folder.is_dir():
        file = folder / "model_index.json"
        try:
            index = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(index, dict):
                raise ValueError("it holds no table")
            return index
        except (OSError, ValueError) as error:
            raise UserError(f"policy.model_name_or_path: {name} is no diffusers pipeline: {file}: {error}") from error
    try:
        return DiffusionPipeline.load_config(name, revision=revision, local_files_only=_local_only(name, revision))
    except (OSError, ValueError) as error:
        raise _unloadable(name, error) from error


@cache
def _local_only(name: str, revision: str | None) -> bool:
    return not Path(name).is_dir() and hub.local_only(name, revision, tiny.NAMES)


def _unloadable(name: str, error: Exception) -> UserError:
    return UserError(f"policy.model_name_or_path: {name} could not be loaded: {first_line(error)}")
