"""Linear layers in fewer bits, for rollouts only: which ones, and how each format computes.

The rule is Sol-RL's, on the layers of the code that it samples with (NVlabs/Sana's own fused ones for SANA, diffusers'
for other families): a layer is left alone when its name contains one of the skipped words, or when neither side is
larger than ``min_dim``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sanarl.models.live import LiveLinear, NamedLinear, Quantizer

Format = Literal["fp8", "nvfp4", "emulated_fp8", "emulated_nvfp4"]

NAMES: dict[Format, str] = {
    "fp8": "FP8 (E4M3, a scale a row)",
    "nvfp4": "NVFP4 (TransformerEngine; never run by its authors)",
    "emulated_fp8": "emulated FP8 (E4M3, a scale a row)",
    "emulated_nvfp4": "emulated NVFP4 (E2M1 in blocks of 16)",
}
"""What each is called wherever it is spoken of."""

FP8_TOP = 448.0  # the largest E4M3
FP4_TOP = 6.0  # the largest E2M1
FP4_BLOCK = 16
MULTIPLE = 16  # of both sides: what the units for fewer bits take
FP4_GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP4_BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Halfway between neighbours; at a tie the neighbour whose last bit is 0 is taken, which are the even places."""


@dataclass(frozen=True)
class Rule:
    """Which layers are quantised."""

    skip_modules: tuple[str, ...]
    min_dim: int

    def reason(self, native: str, in_features: int, out_features: int) -> str | None:
        """Why a layer is left in bf16; None when it is not."""
        word = next((word for word in self.skip_modules if word in native), None)
        if word is not None:
            return f"its name contains {word}"
        if in_features % MULTIPLE or out_features % MULTIPLE:
            return f"a side is no multiple of {MULTIPLE}"
        if self.min_dim > 0 and max(in_features, out_features) <= self.min_dim:
            return f"no side is larger than {self.min_dim}"
        return None


def quantizer(kind: Format, rule: Rule) -> Quantizer:
    """What puts quantised layers in the place of those that the rule lets it."""

    def replace(native: str, linear: nn.Linear) -> nn.Module:
        if rule.reason(native, linear.in_features, linear.out_features) is not None:
            return linear
        return _LAYERS[kind](linear)

    return replace


@dataclass(frozen=True)
class Report:
    """What every linear layer of a copy runs in, read from the modules that run."""

    replaced: dict[str, str]
    """Native name -> format."""
    skipped: dict[str, str]
    """Native name -> why it is in the working dtype."""

    def __str__(self) -> str:
        counts = [f"{name} in {list(self.replaced.values()).count(name)}" for name in sorted({*self.replaced.values()})]
        return f"{', '.join(counts) or 'no quantised'} linear layers, {len(self.skipped)} skipped"

    def lines(self) -> list[str]:
        """Every layer with its format."""
        return [f"{name}: {what}" for name, what in (*self.replaced.items(), *self.skipped.items())]


def report(copied: Mapping[str, LiveLinear], layers: Iterable[NamedLinear], rule: Rule | None) -> Report:
    """What a copy runs in.

    Args:
        copied: its live layers.
        layers: every linear layer of what it copies.
        rule: gives the reasons; None: nothing was to be quantised.
    """
    replaced, skipped = {}, {}
    for live in copied.values():
        if isinstance(live.base, _Quantised):
            replaced[live.native] = live.base.name
    for layer in layers:
        if layer.name not in replaced:
            why = rule.reason(layer.name, layer.in_features, layer.out_features) if rule else "nothing is quantised"
            skipped[layer.name] = why or "it is outside the blocks"
    return Report(replaced, skipped)


class _Quantised(nn.Module):
    """A layer in the place of a linear one; ``name`` says what it computes in."""

    name: str

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features


# ---- FP8


def fp8_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """(M, K) -> E4M3 (M, K) and scales (M, 1) float32: every row is divided by its largest entry over 448."""
    scale = (x.abs().amax(1, keepdim=True).float() / FP8_TOP).clamp(min=1e-12)
    return (x.float() / scale).clamp(-FP8_TOP, FP8_TOP).to(torch.float8_e4m3fn), scale


class Fp8Linear(_Quantised):
    """Weights and activations in E4M3 with a scale a row, multiplied by ``torch._scaled_mm``."""

    name = NAMES["fp8"]

    def __init__(self, linear: nn.Linear):
        super().__init__(linear)
        weight, scale = fp8_rows(linear.weight.detach())
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale.T.contiguous())  # (1, out)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        rows, scale = fp8_rows(x.flatten(0, -2))
        y = torch._scaled_mm(rows, self.weight.T, scale, self.scale, self.bias, out_dtype=x.dtype, use_fast_accum=True)
        return y.unflatten(0, x.shape[:-1])


class EmulatedFp8Linear(Fp8Linear):
    """The same rounding on a device without FP8 units; the product is exact."""

    name = NAMES["emulated_fp8"]

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        rows, scale = fp8_rows(x.flatten(0, -2))
        y = (rows.float() @ self.weight.float().T) * scale * self.scale
        if self.bias is not None:
            y = y + self.bias.float()
        return y.to(x.dtype).unflatten(0, x.shape[:-1])


# ---- NVFP4


def fp4_rounded(x: Tensor, by_sample: bool = False) -> Tensor:
    """(..., K) -> the nearest values that NVFP4 holds, K a multiple of 16, in float32.

    Blocks of 16 share an E4M3 scale, all share a float32 one, entries are E2M1; as in NVIDIA's recipe the whole's scale
    maps the largest entry to 6 * 448.

    Args:
        x: weights, or activations.
        by_sample: each x[i] is a whole of its own, so that it does not depend on what else is in the batch.
    """
    blocks = x.float().unflatten(-1, (-1, FP4_BLOCK))
    top = blocks.abs().flatten(int(by_sample)).amax(-1)  # () or (B,)
    whole = (top / (FP4_TOP * FP8_TOP)).clamp(min=1e-30).view(-1, *[1] * (blocks.ndim - 1))
    scale = blocks.abs().amax(-1, keepdim=True) / (FP4_TOP * whole)
    scale = scale.clamp(max=FP8_TOP).to(torch.float8_e4m3fn).float() * whole
    entries = torch.where(scale > 0, blocks / scale, 0.0).clamp(-FP4_TOP, FP4_TOP)
    bounds = torch.tensor(FP4_BOUNDS, device=x.device)
    size = entries.abs().contiguous()
    place = torch.bucketize(size, bounds)  # a tie goes down
    odd = (place % 2 == 1) & (place < len(bounds)) & (size == bounds[place.clamp(max=len(bounds) - 1)])
    grid = torch.tensor(FP4_GRID, device=x.device)
    return (grid[place + odd] * entries.sign() * scale).flatten(-2)


class EmulatedNvfp4Linear(_Quantised):
    """Weights and activations rounded to what NVFP4 holds; the product is exact. For accuracy studies, never timed.

    The float32 scale of activations is a sample's, so that a sample is the same in every mini-batch and on every rank;
    TransformerEngine's is the batch's.
    """

    name = NAMES["emulated_nvfp4"]

    def __init__(self, linear: nn.Linear):
        super().__init__(linear)
        self.register_buffer("weight", fp4_rounded(linear.weight.detach()))
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        bias = None if self.bias is None else self.bias.float()
        return F.linear(fp4_rounded(x, by_sample=True), self.weight, bias).to(x.dtype)


class TransformerEngineLinear(_Quantised):
    """TransformerEngine's layer under its NVFP4 recipe. Compute capability 10.0 and newer: never run by its authors."""

    name = NAMES["nvfp4"]

    def __init__(self, linear: nn.Linear):
        super().__init__(linear)
        import transformer_engine.pytorch as te
        from transformer_engine.common.recipe import NVFP4BlockScaling

        layer = te.Linear(
            linear.in_features,
            linear.out_features,
            bias=linear.bias is not None,
            params_dtype=linear.weight.dtype,
            device=linear.weight.device,
        )
        with torch.no_grad():
            layer.weight.copy_(linear.weight)
            if linear.bias is not None:
                layer.bias.copy_(linear.bias)
        self.layer = layer
        self._te: Any = te
        self._recipe = NVFP4BlockScaling()

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        te = self._te
        if hasattr(te, "autocast"):  # its name and keyword since 2.9
            context = te.autocast(enabled=True, recipe=self._recipe)
        else:
            context = te.fp8_autocast(enabled=True, fp8_recipe=self._recipe)
        with context:
            return self.layer(x)


_LAYERS: dict[Format, type[nn.Module]] = {
    "fp8": Fp8Linear,
    "nvfp4": TransformerEngineLinear,
    "emulated_fp8": EmulatedFp8Linear,
    "emulated_nvfp4": EmulatedNvfp4Linear,
}
