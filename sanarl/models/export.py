"""Exports: an adapter with prefix and alpha or the whole pipeline for diffusers, an adapter for PEFT."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from peft import get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from sanarl.errors import UserError
from sanarl.files import complete_folder
from sanarl.models.adapter import NAME
from sanarl.models.policy import Policy
from sanarl.shards import is_part, whole

Target = Literal["diffusers", "peft"]


def export(
    policy: Policy, values: Sequence[Tensor], folder: Path, card: str, target: Target = "diffusers", base: str = ""
) -> None:
    """Write the policy with ``values`` into ``folder``, completely or not at all.

    diffusers, with an adapter: ``pytorch_lora_weights.safetensors``, float32, keys prefixed ``transformer.`` and the
    adapter's configuration (rank, alpha) in its metadata, for ``pipe.load_lora_weights``. Without one: a pipeline
    folder in the dtype of its parts, for ``from_pretrained``.

    PEFT: ``adapter_model.safetensors`` and ``adapter_config.json``, which names ``base``, for
    ``PeftModel.from_pretrained(transformer, folder)``. ``card`` becomes README.md.

    Raises:
        UserError: when PEFT is asked for without an adapter, or the disk does not take it.
    """
    if target == "peft" and not _has_adapter(policy):
        raise UserError("--to peft: all weights were trained, there is no adapter; accepted: --to diffusers")
    try:
        with complete_folder(folder) as partial:
            if target == "peft":
                _write_peft(policy, values, partial, base)
            else:
                _write(policy, values, partial)
            (partial / "README.md").write_text(card, encoding="utf-8")
    except Exception as error:
        # safetensors and tokenizers are written in Rust and report a full disk with exceptions of their own.
        if not isinstance(error, OSError) and "(os error " not in str(error):
            raise
        raise UserError(f"{folder}: the export could not be written: {error}") from error


def whole_values(policy: Policy, values: Sequence[Tensor], kept: bool) -> list[Tensor]:
    """Values that ranks hold in parts put together, in the dtype of the working weights; others as they are.

    Every rank calls this; only where ``kept`` the result lists all of them, on the CPU, so that no two are on the
    device at once.
    """
    if not any(is_part(value) for value in values):
        return list(values)
    dtype, found = policy.model.transformer.dtype, []
    for value in values:
        together = whole(value.detach().to(dtype))
        found += [together.cpu()] if kept else []
    return found


def _has_adapter(policy: Policy) -> bool:
    return NAME in getattr(policy.model.transformer, "peft_config", {})


def _write(policy: Policy, values: Sequence[Tensor], folder: Path) -> None:
    transformer, pipeline = policy.model.transformer, policy.model.pipeline
    if not _has_adapter(policy):
        if any(is_part(p) for p in transformer.parameters()):
            with _as_one(pipeline, dict(zip(policy.names, values, strict=True))):
                pipeline.save_pretrained(folder)
            return
        with policy.using(values):
            pipeline.save_pretrained(folder)
        return
    pipeline.save_lora_weights(
        folder,
        transformer_lora_layers=_layers(policy, values),
        transformer_lora_adapter_metadata=transformer.peft_config[NAME].to_dict(),
    )


@contextmanager
def _as_one(pipeline: Any, values: dict[str, Tensor]) -> Iterator[None]:
    """The pipeline with a transformer of its own that holds these values, instead of the one cut over ranks."""
    cut = pipeline.transformer
    kind = next(k for k in type(cut).__mro__ if not issubclass(k, FSDPModule))
    with torch.device("meta"):
        one = kind.from_config(cut.config)
    buffers = {name: value for name, value in cut.state_dict().items() if not is_part(value)}
    one.load_state_dict({**buffers, **values}, assign=True)
    pipeline.transformer = one
    try:
        yield
    finally:
        pipeline.transformer = cut


def _layers(policy: Policy, values: Sequence[Tensor]) -> dict[str, Tensor]:
    """PEFT names the keys; the values come from the masters, in full precision."""
    by_name = dict(zip(policy.names, values, strict=True))
    names = {n.replace(f".{NAME}.", "."): n for n in policy.names}
    layers = get_peft_model_state_dict(policy.model.transformer, adapter_name=NAME)
    assert layers.keys() == names.keys(), "the adapter's keys and the policy's names differ"
    return {k: by_name[names[k]].detach().cpu().contiguous() for k in layers}


def _write_peft(policy: Policy, values: Sequence[Tensor], folder: Path, base: str) -> None:
    layers = {f"base_model.model.{name}": value for name, value in _layers(policy, values).items()}
    save_file(layers, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = copy.deepcopy(policy.model.transformer.peft_config[NAME])
    config.base_model_name_or_path, config.inference_mode = base, True
    config.save_pretrained(folder)
