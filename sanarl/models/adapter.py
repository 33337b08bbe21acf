"""The LoRA slot (Hu et al., arXiv:2106.09685) of a transformer: adding it, and reading adapters from files."""

import difflib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from peft import LoraConfig, get_peft_model_state_dict
from torch import Tensor, nn

from sanarl.errors import UserError
from sanarl.models.adapter_saved import Saved, saved
from sanarl.models.layers import is_target

NAME = "default"


@dataclass(frozen=True)
class LoraSettings:
    """Rank, scale and place of an adapter, in PEFT's terms."""

    r: int
    alpha: float
    target_modules: list[str] | str
    init: bool | Literal["gaussian"] = "gaussian"
    use_rslora: bool = False
    r_pattern: dict[str, int] = field(default_factory=dict)
    alpha_pattern: dict[str, float] = field(default_factory=dict)


def add_adapter(transformer: nn.Module, settings: LoraSettings, seed: int) -> dict[str, Tensor]:
    """Freeze the transformer and add one adapter to it, drawn from ``seed`` alone.

    Returns:
        Parameter name -> starting value in float32. The adapter's own weights are in the transformer's dtype.

    Raises:
        UserError: when a target names no module of the transformer, or a pattern no target.
    """
    _check_targets(transformer, settings)
    dtype = transformer.dtype
    transformer.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer.add_adapter(
            LoraConfig(
                r=settings.r,
                lora_alpha=settings.alpha,
                target_modules=settings.target_modules,
                init_lora_weights=settings.init,
                use_rslora=settings.use_rslora,
                rank_pattern=settings.r_pattern,
                alpha_pattern=settings.alpha_pattern,
            ),
            adapter_name=NAME,
        )
    adapter = {n: p for n, p in transformer.named_parameters() if p.requires_grad}
    start = {n: p.detach().float().clone() for n, p in adapter.items()}
    for p in adapter.values():
        p.data = p.data.to(dtype)
    return start


def _check_targets(transformer: nn.Module, settings: LoraSettings) -> None:
    targets = settings.target_modules
    layers = [n for n, m in transformer.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    suffixes = sorted({re.sub(r"^.*?\d+\.", "", n) for n in layers})
    if isinstance(targets, str):
        try:
            missing = [] if any(is_target(n, targets) for n in layers) else [targets]
        except re.error as error:
            raise UserError(f"policy.lora.target_modules: {targets!r} is no regular expression: {error}") from None
    else:
        missing = [t for t in targets if not any(is_target(n, [t]) for n in layers)]
    if missing:
        hints = {near for t in missing for near in difflib.get_close_matches(t, suffixes, n=2)}
        raise UserError(
            f"policy.lora.target_modules: nothing in {type(transformer).__name__} is called {', '.join(missing)}; "
            f"{'did you mean ' + ', '.join(sorted(hints)) + '?' if hints else 'its layers are ' + ', '.join(suffixes)}"
        )
    adapted = [n for n in layers if is_target(n, targets)]
    widest = max(min(transformer.get_submodule(n).weight.shape[:2]) for n in adapted)
    for key, rank in {"r": settings.r, **{f"r_pattern.{n}": r for n, r in settings.r_pattern.items()}}.items():
        if rank > widest:
            raise UserError(
                f"policy.lora.{key}: found {rank}; accepted at most {widest}, the width of the widest of these layers"
            )
    for key, pattern in (("r_pattern", settings.r_pattern), ("alpha_pattern", settings.alpha_pattern)):
        for name in pattern:
            try:
                found = any(re.fullmatch(rf"(.*\.)?({name})", n) for n in adapted)  # as PEFT matches
            except re.error as error:
                raise UserError(f"policy.lora.{key}: {name!r} is no regular expression: {error}") from None
            if not found:
                raise UserError(f"policy.lora.{key}: {name!r} is the name of no layer in target_modules")


def read_adapter(path: Path, transformer: nn.Module, settings: LoraSettings) -> dict[str, Tensor]:
    """Starting values from a saved adapter, for the slot that ``add_adapter`` made.

    Args:
        path: a folder or file as diffusers (``pytorch_lora_weights.safetensors``) or PEFT
            (``adapter_model.safetensors`` beside ``adapter_config.json``) write it.
        transformer: with its slot. settings: of that slot.

    Returns:
        Parameter name -> value in float32.

    Raises:
        UserError: when there is no such file, what is in it is no adapter, or its rank, scale, names or shapes are not
            the slot's.
    """
    found = saved(path, "policy.lora.lora_path")
    _check_scale(found, settings)
    values = found.values
    slot = get_peft_model_state_dict(transformer, adapter_name=NAME)
    faults = [f"{k} is missing" for k in sorted(slot.keys() - values.keys())]
    faults += [f"{k} has no place" for k in sorted(values.keys() - slot.keys())]
    faults += [
        f"{k} has shape {tuple(values[k].shape)}, the slot {tuple(slot[k].shape)}"
        for k in sorted(slot.keys() & values.keys())
        if slot[k].shape != values[k].shape
    ]
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise UserError(
            f"policy.lora.lora_path: {found.file} does not fit policy.lora (r, target_modules): "
            f"{'; '.join(faults[:5])}{more}"
        )
    return {k.replace(".weight", f".{NAME}.weight"): v.float() for k, v in values.items()}


def _check_scale(found: Saved, settings: LoraSettings) -> None:
    """Rank and alpha written beside the weights must be the slot's; without any, alpha = r is what loaders assume."""
    alpha = found.alpha if found.described else float(settings.r)
    told = (("r", settings.r, found.r), ("lora_alpha", settings.alpha, alpha))
    for key, asked, has in (*told, ("use_rslora", settings.use_rslora, found.use_rslora)):
        if has is not None and has != asked:
            raise UserError(
                f"policy.lora.{key}: found {asked}, but the adapter {found.file} has {_said(has)}; write {key} = "
                f"{_said(has).lower()}"
            )
    if found.alpha_pattern is not None and found.alpha_pattern != settings.alpha_pattern:
        raise UserError(
            f"policy.lora.alpha_pattern: found {settings.alpha_pattern}, but the adapter {found.file} has "
            f"{found.alpha_pattern}"
        )


def _said(value: bool | int | float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
