"""Linear layers of a copy: base weights of its own, in fewer bits where asked for, and the policy's adapters live.

A copy never holds merged weights: W is exact in bf16, so W + delta rounds back to W wherever delta is under half a step
of W, and a young adapter would be lost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from sanarl.models.adapter import NAME

RANK_MULTIPLE = 16
"""Ranks of a layer together are padded to this: products of odd sizes take slow kernels."""

Quantizer = Callable[[str, nn.Linear], nn.Module]
"""(native name, bf16 layer) -> the layer that computes in its place."""


class NamedLinear(NamedTuple):
    """A linear layer under the name that the rule of quantisation knows it by."""

    name: str
    in_features: int
    out_features: int


def as_it_is(_: str, linear: nn.Linear) -> nn.Module:
    """The quantizer that quantises nothing."""
    return linear


@dataclass(frozen=True)
class Part:
    """One layer of the policy inside a fused one, and where its adapter lies there."""

    layer: nn.Module
    ranks: slice
    rows: slice


class LiveLinear(nn.Module):
    """A linear layer with the adapters of the layers that it fuses, side by side and live."""

    def __init__(self, native: str, parts: Sequence[nn.Module], dtype: torch.dtype, quantize: Quantizer):
        """Copy the parts' weights; adapters are zero until ``take_adapters``.

        Args:
            native: name that the layer has where the rule of quantisation comes from.
            parts: linear layers or 1x1 convolutions, with or without an adapter.
            dtype: of the copy.
            quantize: may put another layer in the copy's place.
        """
        super().__init__()
        layers = [getattr(part, "base_layer", part) for part in parts]
        weight = torch.cat([layer.weight.detach().flatten(1) for layer in layers]).to(dtype)
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=layers[0].bias is not None, device="meta")
        linear.weight = nn.Parameter(weight, requires_grad=False)
        if layers[0].bias is not None:
            linear.bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in layers]).to(dtype), False)
        self.native = native
        self.base = quantize(native, linear)
        self.parts: list[Part] = []
        rank, row = 0, 0
        for part, layer in zip(parts, layers, strict=True):
            rows = layer.weight.shape[0]
            if isinstance(part, LoraLayer) and NAME in part.lora_A:
                r = part.lora_A[NAME].weight.shape[0]
                self.parts.append(Part(part, slice(rank, rank + r), slice(row, row + rows)))
                rank += r
            row += rows
        self.is_adapted = bool(self.parts)
        padded = -(-rank // RANK_MULTIPLE) * RANK_MULTIPLE
        for name, shape in (("down", (padded, weight.shape[1])), ("up", (row, padded)), ("scale", (padded,))):
            self.register_buffer(name, torch.zeros(shape, dtype=dtype, device=weight.device))

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        y = self.base(x)
        if not self.is_adapted:
            return y
        # A product that adds to y (addmm) copies y first; the sum becomes part of what comes after it.
        return y + F.linear(F.linear(x, self.down) * self.scale, self.up)

    def take_adapters(self) -> Tensor:
        """Copy the adapters' present values, and look whether they arrived: () bool, on the device.

        ``up`` is zero outside the parts' own blocks, so that one product serves all parts.
        """
        same = [torch.ones((), dtype=torch.bool, device=self.down.device)]
        for part in self.parts:
            down, up = (getattr(part.layer, f"lora_{x}")[NAME].weight.detach().flatten(1) for x in "AB")
            scale = torch.tensor(float(part.layer.scaling[NAME]), dtype=self.scale.dtype, device=self.scale.device)
            here = (self.down[part.ranks], self.up[part.rows, part.ranks], self.scale[part.ranks])
            for mine, theirs in zip(here, (down, up, scale), strict=True):
                mine.copy_(theirs)
                same.append((mine == theirs.to(mine.dtype)).all())
        return torch.stack(same).all()
