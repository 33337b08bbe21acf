"""What the file of an adapter says of it: rank, scale and places, for a slot that it fits."""

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open

from sanarl.errors import UserError
from sanarl.models.adapter import FILES, PREFIXES, LoraSettings
from sanarl.models.native import convert_adapter


def described(path: Path, key: str) -> LoraSettings:
    """The slot that an adapter in a folder or file needs.

    Its description is read from the file's metadata (diffusers) or from ``adapter_config.json`` beside it (PEFT);
    without one, ranks are those of the weights and alpha = r, as loaders assume.

    Args:
        path: as for :func:`sanarl.models.adapter.read_adapter`.
        key: what named it, for errors.

    Raises:
        UserError: when there is no such file, or it holds no LoRA of a transformer.
    """
    file = next((path / name for name in FILES if (path / name).is_file()), path)
    if not file.is_file():
        raise UserError(f"{key}: no adapter in {path}; expected a folder with {' or '.join(FILES)}, or such a file")
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            saved = {name: opened.get_tensor(name) for name in opened.keys() if ".lora_" in name}  # noqa: SIM118
        told = _told(file, metadata)
    except Exception as error:
        raise UserError(f"{key}: {file} is no readable adapter: {error}") from error
    for prefix in PREFIXES:
        saved = {name.removeprefix(prefix): value for name, value in saved.items()}
    saved = convert_adapter(saved)
    ranks = {name.partition(".lora_A")[0]: len(value) for name, value in saved.items() if ".lora_A" in name}
    if not ranks:
        raise UserError(f"{key}: {file} holds no LoRA of a transformer (no lora_A among its tensors)")
    r = int(told.get("r") or max(ranks.values()))
    return LoraSettings(
        r=r,
        alpha=float(told.get("lora_alpha") or r),
        target_modules=sorted(ranks),
        use_rslora=bool(told.get("use_rslora")),
        r_pattern={name: rank for name, rank in ranks.items() if rank != r},
        alpha_pattern=dict(told.get("alpha_pattern") or {}),
    )


def _told(file: Path, metadata: dict[str, str]) -> dict[str, Any]:
    """The adapter's description; empty when there is none."""
    beside = file.parent / "adapter_config.json"
    if "lora_adapter_metadata" in metadata:
        saved = json.loads(metadata["lora_adapter_metadata"])
        return {name.removeprefix("transformer."): value for name, value in saved.items()}
    return dict(json.loads(beside.read_text(encoding="utf-8"))) if beside.is_file() else {}
