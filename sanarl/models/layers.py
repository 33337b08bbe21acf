"""Names and widths of a transformer's layers, from its configuration alone; imports no torch."""

import json
import math
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from sanarl.config.schema.root import Family
from sanarl.models import joint_layers

LARGEST: dict[str, Any] = {
    "num_layers": 60,
    "num_attention_heads": 70,
    "attention_head_dim": 32,
    "num_cross_attention_heads": 20,
    "cross_attention_head_dim": 112,
    "mlp_ratio": 3.0,
    "caption_channels": 2304,
}
"""As many blocks, and as wide, as any published SANA has: for models whose configuration is not on this machine."""


def widths(name: str, modality: Literal["image", "video"], family: Family = "sana") -> dict[str, int]:
    """Full name of every layer that an adapter can have -> the smaller of its two widths.

    Args:
        name: of the model: an embedded one, a folder, or a hub id.
        modality: what it makes.
        family: that it is of.
    """
    found = _config(name)
    if family == "sd3":
        return joint_layers.sd3(joint_layers.SD3_LARGEST | found)
    if family == "flux":
        return joint_layers.flux(joint_layers.FLUX_LARGEST | found)
    return _sana(LARGEST | found, modality)


def _sana(config: Mapping[str, Any], modality: Literal["image", "video"]) -> dict[str, int]:
    width = int(config["num_attention_heads"]) * int(config["attention_head_dim"])
    cross = int(config["num_cross_attention_heads"]) * int(config["cross_attention_head_dim"])
    found = dict.fromkeys(("time_embed.linear", "caption_projection.linear_2"), width)
    found["caption_projection.linear_1"] = min(width, int(config["caption_channels"]))
    patch = config.get("patch_size", 1)
    pixels = math.prod(patch) if isinstance(patch, list) else int(patch) ** 2
    found["proj_out"] = min(width, int(config.get("out_channels", 32)) * pixels)
    found |= {f"time_embed.emb.timestep_embedder.linear_{i}": min(width, 256 if i == 1 else width) for i in (1, 2)}
    if modality == "image":
        found["patch_embed.proj"] = int(config.get("in_channels", 32))
    block = {f"attn1.{layer}": width for layer in ("to_q", "to_k", "to_v", "to_out.0")}
    block |= {f"attn2.{layer}": min(width, cross) for layer in ("to_q", "to_k", "to_v", "to_out.0")}
    block |= {"ff.conv_inverted": width, "ff.conv_depth": 1, "ff.conv_point": width}
    block |= {"ff.conv_temp": width} if modality == "video" else {}
    for number in range(int(config["num_layers"])):
        found |= {f"transformer_blocks.{number}.{layer}": size for layer, size in block.items()}
    return found


def _config(name: str) -> dict[str, Any]:
    """The transformer's configuration, where it lies on this machine."""
    embedded = Path(str(resources.files("sanarl"))) / "assets" / name
    for folder in (embedded, Path(name)):
        try:
            found = json.loads((folder / "transformer" / "config.json").read_text(encoding="utf-8"))
            return {key: value for key, value in found.items() if value is not None}
        except (OSError, ValueError, AttributeError):
            continue
    return {}


def is_target(name: str, targets: list[str] | str) -> bool:
    """Whether a layer gets an adapter: a text is a regular expression over full names, a list holds ends of names."""
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    return any(name == t or name.endswith(f".{t}") for t in targets)
