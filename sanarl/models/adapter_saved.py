"""What a file of an adapter holds, whoever wrote it: diffusers, PEFT, or Sol-RL on NVlabs/Sana's fused layers."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from sanarl.errors import UserError, first_line
from sanarl.models.native import convert_adapter

FILES = ("pytorch_lora_weights.safetensors", "adapter_model.safetensors")
PREFIXES = ("transformer.", "base_model.model.")


@dataclass(frozen=True)
class Saved:
    """An adapter in diffusers' names, and what is written beside its weights; None: nothing is."""

    file: Path
    values: dict[str, Tensor]
    described: bool
    """Whether there is a description at all."""
    r: int | None
    alpha: float | None
    use_rslora: bool | None
    alpha_pattern: dict[str, float] | None


def saved(path: Path, key: str) -> Saved:
    """Read an adapter from a folder or file.

    Its description is read from the file's metadata (diffusers) or from ``adapter_config.json`` beside it (PEFT).

    Args:
        path: a folder or file as diffusers (``pytorch_lora_weights.safetensors``) or PEFT
            (``adapter_model.safetensors`` beside ``adapter_config.json``) write it.
        key: what named it, for errors.

    Raises:
        UserError: when there is no such file, or its weights or its description are none.
    """
    file = next((path / name for name in FILES if (path / name).is_file()), path)
    if not file.is_file():
        raise UserError(f"{key}: no adapter in {path}; expected a folder with {' or '.join(FILES)}, or such a file")
    try:
        with safe_open(file, framework="pt") as opened:
            metadata, found = opened.metadata() or {}, {k: opened.get_tensor(k) for k in opened.keys()}  # noqa: SIM118
    except Exception as error:
        raise UserError(f"{key}: {file} is no readable adapter: {error}") from error
    for prefix in PREFIXES:
        found = {name.removeprefix(prefix): value for name, value in found.items()}
    wrong = [name for name, value in found.items() if not _are_weights(value)]
    if wrong:
        raise UserError(f"{key}: {file} holds what no weights are: {wrong[0]} is not of finite floating-point numbers")
    try:
        values = convert_adapter(found)
    except ValueError as error:
        raise UserError(f"{key}: {file}: {error}") from error
    table = _description(file, metadata, key)
    told = {
        name: _value(table, name, read, file, key)
        for name, read in (("r", _rank), ("lora_alpha", _scale), ("use_rslora", _flag), ("alpha_pattern", _scales))
    }
    return Saved(file, values, bool(table), told["r"], told["lora_alpha"], told["use_rslora"], told["alpha_pattern"])


def _are_weights(value: Tensor) -> bool:
    return value.is_floating_point() and bool(value.isfinite().all())


def _description(file: Path, metadata: dict[str, str], key: str) -> dict[str, Any]:
    """The adapter's description; empty when there is none."""
    beside = file.parent / "adapter_config.json"
    try:
        if "lora_adapter_metadata" in metadata:
            table = json.loads(metadata["lora_adapter_metadata"])
        else:
            table = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
        if not isinstance(table, dict):
            raise ValueError("it holds no table")
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{key}: the description of {file} is no readable JSON table: {first_line(error)}") from error
    return {name.removeprefix("transformer."): value for name, value in table.items()}


def _value(table: dict[str, Any], name: str, read: Callable[[Any], Any], file: Path, key: str) -> Any:
    """What a description says under a name; None where it says nothing."""
    if table.get(name) is None:
        return None
    try:
        return read(table[name])
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{key}: the description of {file} has {name} = {json.dumps(table[name])}: {error}") from None


def _rank(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("a rank is a whole number, 1 or more")
    return value


def _scale(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ValueError("a scale is a finite number above 0")
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("this is true or false")
    return value


def _scales(value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise ValueError("this is a table of scales")
    return {name: _scale(scale) for name, scale in value.items()}
