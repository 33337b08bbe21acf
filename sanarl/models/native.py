"""NVlabs/Sana's own names and shapes of the weights that diffusers calls ``SanaTransformer2DModel``.

Both hold the same numbers. Native layers fuse what diffusers splits (attn.qkv, cross_attn.kv_linear), and the 1x1
convolutions of the mixed FFN may be stored as linear layers ("LinearFFN", the form that Sol-RL trains).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sanarl.errors import UserError

BLOCK: dict[str, tuple[str, ...]] = {
    "attn.qkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
    "attn.proj": ("attn1.to_out.0",),
    "attn.q_norm": ("attn1.norm_q",),
    "attn.k_norm": ("attn1.norm_k",),
    "cross_attn.q_linear": ("attn2.to_q",),
    "cross_attn.kv_linear": ("attn2.to_k", "attn2.to_v"),
    "cross_attn.proj": ("attn2.to_out.0",),
    "cross_attn.q_norm": ("attn2.norm_q",),
    "cross_attn.k_norm": ("attn2.norm_k",),
    "mlp.inverted_conv.conv": ("ff.conv_inverted",),
    "mlp.depth_conv.conv": ("ff.conv_depth",),
    "mlp.point_conv.conv": ("ff.conv_point",),
}
"""Native layer of a block -> the diffusers layers that it fuses, in the order of its rows."""

OUTSIDE = {
    "x_embedder.proj": "patch_embed.proj",
    "y_embedder.y_proj.fc1": "caption_projection.linear_1",
    "y_embedder.y_proj.fc2": "caption_projection.linear_2",
    "t_embedder.mlp.0": "time_embed.emb.timestep_embedder.linear_1",
    "t_embedder.mlp.2": "time_embed.emb.timestep_embedder.linear_2",
    "t_block.1": "time_embed.linear",
    "attention_y_norm": "caption_norm",
    "final_layer.linear": "proj_out",
}
TABLES = {"final_layer.scale_shift_table": "scale_shift_table"}
UNUSED = ("y_embedder.y_embedding", "pos_embed", "logvar_linear.weight", "logvar_linear.bias")
"""What native checkpoints hold and no velocity needs: the caption of dropout in training, a constant, the loss's
uncertainty."""

LINEAR = {f"mlp.{name}.linear": f"mlp.{name}.conv" for name in ("inverted_conv", "point_conv")}
"""LinearFFN's layers -> the 1x1 convolutions that they are."""

_TOLD = ("transformer_blocks.0.ff.conv_point", "transformer_blocks.0.attn1.to_q")
"""Layers, beside those outside the blocks, whose shapes tell the configuration."""
_VECTORS = ("q_norm", "k_norm", "attention_y_norm")
_IN_BLOCK = re.compile(r"blocks\.(0|[1-9][0-9]*)\.(.+)")
_DIFFUSERS_BLOCK = re.compile(r"transformer_blocks\.(\d+)\.(.+)")
_LORA = re.compile(r"(.+)\.(lora_[AB])\.weight")


@dataclass(frozen=True)
class Converted:
    """A native checkpoint in diffusers' names."""

    state: dict[str, Tensor]
    unused: tuple[str, ...]
    """Native keys that no velocity needs."""
    linear_ffn: bool
    """Whether the FFN's 1x1 convolutions were stored as linear layers."""

    @property
    def num_layers(self) -> int:
        """Transformer blocks."""
        return 1 + max((int(m[1]) for k in self.state if (m := _DIFFUSERS_BLOCK.match(k))), default=-1)

    @property
    def width(self) -> int:
        """Channels of a token."""
        return self.state["patch_embed.proj.weight"].shape[0]


def convert(native: Mapping[str, Tensor], source: str) -> Converted:
    """Rename, split and reshape; every key of ``native`` is used, or known to be unused.

    Args:
        native: a checkpoint's weights, stock or LinearFFN.
        source: what to call it in errors.

    Raises:
        UserError: naming the keys that are no SANA's, or missing from it.
    """
    state: dict[str, Tensor] = {}
    unused, unknown, misshapen = [], [], []
    for key, value in native.items():
        wanted = _rank_of(*key.rpartition(".")[::2])
        if key not in UNUSED and wanted is not None and (value.ndim != wanted or not value.numel()):
            misshapen.append(f"{key} {tuple(value.shape)}")
            continue
        found = list(_split(key, value))
        state.update(found)
        if not found:
            (unused if key in UNUSED else unknown).append(key)
    forms = {key.rpartition(".")[0].rpartition(".")[2] for key in native if re.search(r"mlp\.(in|po)\w+\.", key)}
    blocks = sorted({int(m[1]) for key in state if (m := _DIFFUSERS_BLOCK.match(key))})
    missing = [ours for theirs, ours in OUTSIDE.items() if f"{ours}.weight" not in state]
    missing += [ours for ours in TABLES.values() if ours not in state]
    missing += [name for name in _TOLD if f"{name}.weight" not in state] * bool(blocks)
    if unknown or missing or misshapen or len(forms) != 1 or blocks != list(range(len(blocks))):
        faults = [f"{_listed(unknown)} belong to no SANA"] * bool(unknown)
        faults += [f"{_listed(misshapen)} have not the dimensions of SANA's layers"] * bool(misshapen)
        missing = [] if misshapen else missing
        faults += [f"{_listed(missing)} (in diffusers' names) are missing"] * bool(missing)
        faults += [f"its blocks are not numbered 0 to {len(blocks) - 1}"] * (blocks != list(range(len(blocks))))
        faults += ["its FFN mixes linear layers and convolutions"] * (len(forms) > 1)
        faults += ["it has no transformer blocks"] * (not forms)
        raise UserError(f"policy.model_name_or_path: {source} is no native SANA for pictures: {'; '.join(faults)}")
    return Converted(state, tuple(unused), linear_ffn=forms == {"linear"})


def _rank_of(layer: str, kind: str) -> int | None:
    """Dimensions of a native weight; None where the name tells nothing."""
    if kind == "scale_shift_table":
        return 2
    if kind == "bias" or layer.endswith(_VECTORS):
        return 1
    if kind != "weight":
        return None
    return 4 if layer.endswith(".conv") or layer == "x_embedder.proj" else 2


def _listed(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(sorted(names)[:most])}{more}"


def _split(key: str, value: Tensor) -> Iterable[tuple[str, Tensor]]:
    """The diffusers weights that a native one holds; none for a key that is not known."""
    if key in TABLES:
        yield TABLES[key], value
        return
    layer, _, kind = key.rpartition(".")
    if layer in OUTSIDE:
        yield f"{OUTSIDE[layer]}.{kind}", value
        return
    match = _IN_BLOCK.fullmatch(layer) or _IN_BLOCK.fullmatch(key)
    if match is None:
        return
    block, inside = f"transformer_blocks.{match[1]}", match[2]
    if inside == "scale_shift_table":
        yield f"{block}.scale_shift_table", value
        return
    if inside in LINEAR:
        inside = LINEAR[inside]
        value = value[:, :, None, None] if kind == "weight" else value
    parts = BLOCK.get(inside, ())
    if parts and value.shape[0] % len(parts) == 0:
        yield from ((f"{block}.{name}.{kind}", part) for name, part in zip(parts, value.chunk(len(parts)), strict=True))


def configured(converted: Converted, base: Mapping[str, Any], source: str, base_name: str) -> dict[str, Any]:
    """The configuration of a ``SanaTransformer2DModel`` that holds the weights.

    What shapes tell comes from the weights (depth, channels, FFN, query and key norm); what they do not (heads,
    positions, scales) from the base pipeline's transformer, which must be as wide.

    Raises:
        UserError: when it is not.
    """
    state, width = converted.state, converted.width
    base_width = base["num_attention_heads"] * base["attention_head_dim"]
    if width != base_width:
        raise UserError(
            f"policy.base_pipeline: the transformer of {base_name} is {base_width} wide and {source} is {width}; "
            "name a pipeline of the same size"
        )
    first = "transformer_blocks.0"
    patch = state["patch_embed.proj.weight"].shape[-1]
    normed = f"{first}.attn1.norm_q.weight" in state
    return dict(base) | {
        "num_layers": converted.num_layers,
        "in_channels": state["patch_embed.proj.weight"].shape[1],
        "out_channels": state["proj_out.weight"].shape[0] // patch**2,
        "patch_size": patch,
        "caption_channels": state["caption_projection.linear_1.weight"].shape[1],
        "mlp_ratio": state[f"{first}.ff.conv_point.weight"].shape[1] / width,
        "attention_bias": f"{first}.attn1.to_q.bias" in state,
        "qk_norm": (base.get("qk_norm") or "rms_norm_across_heads") if normed else None,
    }


# ---- adapters


def convert_adapter(saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A LoRA on native layers as one on diffusers layers: exactly the same change of every output.

    A fused layer's A is each part's own, and its B is cut where the layer is.

    Args:
        saved: ``blocks.N.LAYER.lora_A.weight`` (r, in) and ``.lora_B.weight`` (out, r).

    Returns:
        The same in diffusers' names; keys that are not native stay as they are.

    Raises:
        ValueError: when a weight has not its layer's dimensions, or a fused layer's cannot be cut into its parts.
    """
    converted: dict[str, Tensor] = {}
    for key, value in saved.items():
        match = _LORA.fullmatch(key)
        place = _IN_BLOCK.fullmatch(match[1]) if match else None
        if match is None or place is None or LINEAR.get(place[2], place[2]) not in BLOCK:
            converted[key] = value
            continue
        inside = LINEAR.get(place[2], place[2])
        parts = BLOCK[inside]
        if value.ndim != _rank_of(place[2], "weight") or (match[2] == "lora_B" and value.shape[0] % len(parts)):
            raise ValueError(f"{key} has shape {tuple(value.shape)}, which fits no {place[2]}")
        if inside != place[2]:  # the adapter of a linear layer becomes one of a 1x1 convolution
            value = value[:, :, None, None]
        values = value.chunk(len(parts)) if match[2] == "lora_B" else [value] * len(parts)
        for name, part in zip(parts, values, strict=True):
            converted[f"transformer_blocks.{place[1]}.{name}.{match[2]}.weight"] = part.clone()
    return converted


# ---- layers in native terms


@dataclass(frozen=True)
class NativeLayer:
    """A native linear layer and the diffusers layers that it fuses."""

    name: str
    in_features: int
    out_features: int
    parts: tuple[str, ...]


def linear_layers(transformer: nn.Module) -> list[NativeLayer]:
    """Every linear layer that the native LinearFFN form of a transformer has, with its fused shape.

    1x1 convolutions of the FFN count as linear; names are native where the model has one.
    """
    fused = {name: native for native, parts in BLOCK.items() for name in parts}
    linear = {conv: name for name, conv in LINEAR.items()}
    outside = {ours: theirs for theirs, ours in OUTSIDE.items()}
    found: dict[str, NativeLayer] = {}
    for name, module in transformer.named_modules():
        module = getattr(module, "base_layer", module)
        match = _DIFFUSERS_BLOCK.fullmatch(name)
        shape = _linear_shape(module, in_block=match is not None)
        if shape is None or name.endswith(".base_layer") or ".lora_" in name:
            continue
        if match is None or match[2] not in fused:
            native = outside.get(name, name)
            found[native] = NativeLayer(native, *shape, (name,))
            continue
        inside = fused[match[2]]
        native = f"blocks.{match[1]}.{linear.get(inside, inside)}"
        before = found.get(native)
        rows = shape[1] + (before.out_features if before else 0)
        found[native] = NativeLayer(native, shape[0], rows, (*(before.parts if before else ()), name))
    return list(found.values())


def _linear_shape(module: nn.Module, in_block: bool) -> tuple[int, int] | None:
    """(in, out) of a linear layer, or of a 1x1 convolution in a block; that of the patch embedding is none natively."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if in_block and isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.groups == 1:
        return module.in_channels, module.out_channels
    return None
