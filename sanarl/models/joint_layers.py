"""Names and widths of the layers of SD3.5's and FLUX.1's transformers, from a configuration alone; imports no torch."""

from collections.abc import Mapping
from typing import Any

SD3_LARGEST: dict[str, Any] = {
    "num_layers": 38,
    "num_attention_heads": 38,
    "attention_head_dim": 64,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 2048,
    "in_channels": 16,
    "out_channels": 16,
    "patch_size": 2,
    "dual_attention_layers": tuple(range(13)),
}
"""As many blocks, and as wide, as any published model has, with the second attention of SD3.5-M's first blocks."""
FLUX_LARGEST: dict[str, Any] = {
    "num_layers": 19,
    "num_single_layers": 38,
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "in_channels": 64,
    "guidance_embeds": True,
}
QKV = ("to_q", "to_k", "to_v")
ADDED = ("add_q_proj", "add_k_proj", "add_v_proj")
FEED = ("net.0.proj", "net.2")


def sd3(config: Mapping[str, Any]) -> dict[str, int]:
    """Full name of every layer that an adapter can have -> the smaller of its two widths."""
    width = _width(config)
    found = _embedders(config, width, ("timestep_embedder",))
    found["pos_embed.proj"] = int(config["in_channels"])
    found["proj_out"] = min(width, int(config["patch_size"]) ** 2 * int(config["out_channels"]))
    last = int(config["num_layers"]) - 1
    for number in range(last + 1):
        layers = ["norm1.linear", "norm1_context.linear", *(f"attn.{x}" for x in (*QKV, *ADDED, "to_out.0"))]
        layers += [f"ff.{x}" for x in FEED]
        if number != last:
            layers += ["attn.to_add_out", *(f"ff_context.{x}" for x in FEED)]
        if number in config["dual_attention_layers"]:
            layers += [f"attn2.{x}" for x in (*QKV, "to_out.0")]
        found |= {f"transformer_blocks.{number}.{layer}": width for layer in layers}
    return found


def flux(config: Mapping[str, Any]) -> dict[str, int]:
    """Full name of every layer that an adapter can have -> the smaller of its two widths."""
    width, channels = _width(config), int(config["in_channels"])
    guided = ("guidance_embedder",) if config["guidance_embeds"] else ()
    found = _embedders(config, width, ("timestep_embedder", *guided))
    found |= {"x_embedder": min(width, channels), "proj_out": min(width, int(config.get("out_channels") or channels))}
    both = ["norm1.linear", "norm1_context.linear", *(f"attn.{x}" for x in (*QKV, *ADDED, "to_out.0", "to_add_out"))]
    both += [f"{ff}.{x}" for ff in ("ff", "ff_context") for x in FEED]
    single = ["norm.linear", "proj_mlp", "proj_out", *(f"attn.{x}" for x in QKV)]
    for name, layers in (("transformer_blocks", both), ("single_transformer_blocks", single)):
        count = int(config["num_layers" if layers is both else "num_single_layers"])
        found |= {f"{name}.{number}.{layer}": width for number in range(count) for layer in layers}
    return found


def _width(config: Mapping[str, Any]) -> int:
    return int(config["num_attention_heads"]) * int(config["attention_head_dim"])


def _embedders(config: Mapping[str, Any], width: int, sinusoidal: tuple[str, ...]) -> dict[str, int]:
    """Layers outside of the blocks that both have."""
    inputs = dict.fromkeys(sinusoidal, 256) | {"text_embedder": int(config["pooled_projection_dim"])}
    found = {"norm_out.linear": width, "context_embedder": min(width, int(config["joint_attention_dim"]))}
    for name, size in inputs.items():
        found |= {f"time_text_embed.{name}.linear_1": min(width, size), f"time_text_embed.{name}.linear_2": width}
    return found
