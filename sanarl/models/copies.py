"""Transformers for inference alone, made from a policy's: SANA's in its fast form, any other as diffusers computes it.

Both hold base weights of their own in one dtype, or fewer bits, in :class:`LiveLinear` layers, beside which the
policy's adapters stay live.
"""

import copy
from collections.abc import Iterator
from typing import Protocol

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from sanarl.errors import UserError
from sanarl.models import native
from sanarl.models.base import FlowModel, repeated_blocks
from sanarl.models.fast import Captions, FastTransformer
from sanarl.models.live import LiveLinear, NamedLinear, Quantizer, as_it_is
from sanarl.models.sana import TIMESTEPS
from sanarl.types import Cond


class Copy(Protocol):
    """A transformer that samples in the place of a policy's."""

    transformer: nn.Module
    blocks: list[nn.Module]
    """What is compiled."""
    places: str
    """Where adapters may be, in words."""

    def linear_layers(self) -> list[NamedLinear]:
        """Every linear layer of the transformer that it copies."""

    def values_changed(self) -> None:
        """Hear that adapters have other values now."""

    def velocity(self, x_t: Tensor, sigma: Tensor, cond: Cond, batch: int) -> Tensor:
        """Velocity at ``x_t``, of up to ``batch`` rows, computed as ``batch`` rows; (rows, C, H, W)."""


def copied(model: FlowModel, dtype: torch.dtype, quantize: Quantizer) -> Copy:
    """The copy that is best for a model's transformer.

    Raises:
        UserError: when there is none for it.
    """
    kind = type(model.transformer).__name__
    if len(model.latent_shape) != 3:
        raise UserError(f"copies for sampling are made of models for pictures, found a {kind}")
    return (SanaCopy if kind == "SanaTransformer2DModel" else PlainCopy)(model, dtype, quantize)


def live_layers(transformer: nn.Module) -> dict[str, LiveLinear]:
    """Every live layer of a copy by its place in it."""
    return {name: m for name, m in transformer.named_modules() if isinstance(m, LiveLinear)}


def _fill(rows: int, batch: int, device: torch.device) -> Tensor:
    """Row numbers that fill a batch up with its last row, (max(batch, rows),)."""
    return torch.arange(max(batch, rows), device=device).clamp(max=rows - 1)


class SanaCopy:
    """See :mod:`sanarl.models.fast`; captions of the last two conditions are kept, as guidance asks for two."""

    places = "attention's layers and the FFN's 1x1 convolutions"

    def __init__(self, model: FlowModel, dtype: torch.dtype, quantize: Quantizer):
        """Copy.

        Raises:
            UserError: when the model has guidance embeddings.
        """
        config = model.transformer.config
        if config.get("guidance_embeds"):
            raise UserError("a copy of a SANA has no place for guidance embeddings")
        self._original = model.transformer
        self.transformer = FastTransformer(model.transformer, dtype, quantize)
        self.blocks = list(self.transformer.blocks)
        self._factor = TIMESTEPS * float(config.get("timestep_scale", 1.0))
        self._learned_sigma = config.out_channels == 2 * config.in_channels
        self._captions: list[tuple[Cond, Captions]] = []

    def linear_layers(self) -> list[NamedLinear]:
        """See Copy; in NVlabs/Sana's names, fused as there."""
        return [NamedLinear(x.name, x.in_features, x.out_features) for x in native.linear_layers(self._original)]

    def values_changed(self) -> None:
        """See Copy."""
        self._captions = []

    def velocity(self, x_t: Tensor, sigma: Tensor, cond: Cond, batch: int) -> Tensor:
        """See Copy."""
        rows, fill = len(x_t), _fill(len(x_t), batch, x_t.device)
        captions = self._prepared(cond, len(fill))
        out = self.transformer(x_t[fill], captions, sigma.float()[fill] * self._factor)[:rows]
        return (out.chunk(2, dim=1)[0] if self._learned_sigma else out).to(x_t.dtype)

    def _prepared(self, cond: Cond, batch: int) -> Captions:
        """Keys and values of a batch's captions."""
        for known, captions in self._captions:
            if known is cond and len(captions.bias) == batch:
                return captions
        # Neighbours that are equal are one prompt: the rows of a group lie side by side.
        differs = (cond.embeds[1:] != cond.embeds[:-1]).flatten(1).any(1) | (cond.mask[1:] != cond.mask[:-1]).any(1)
        place = torch.cat([differs.new_zeros(1), differs]).cumsum(0)
        first = torch.cat([differs.new_ones(1), differs]).nonzero().flatten()
        captions = self.transformer.captions(cond[first], place[_fill(len(place), batch, place.device)])
        self._captions = [*self._captions[-1:], (cond, captions)]
        return captions


class PlainCopy:
    """Diffusers' modules with every linear layer live; the family's class computes with them as with the policy's.

    As in SANA's fast form only layers of the blocks are quantised: rounding in the last layer would go into the
    velocity as it is.
    """

    places = "linear layers"

    def __init__(self, model: FlowModel, dtype: torch.dtype, quantize: Quantizer):
        """Copy; linear layers at once in the form that they are kept in."""
        original = model.transformer
        self._layers = [NamedLinear(n, m.in_features, m.out_features) for n, m in _linear(original)]
        inside = {id(m) for block in repeated_blocks(original) for m in block.modules()}
        live = {
            id(m): LiveLinear(name, [m], dtype, quantize if id(m) in inside else as_it_is)
            for name, m in _linear(original)
        }
        self.transformer = copy.deepcopy(original, dict(live)).requires_grad_(False).eval()  # with these in their place
        made = {id(t) for layer in live.values() for t in (*layer.parameters(), *layer.buffers())}
        for tensor in (*self.transformer.parameters(), *self.transformer.buffers()):
            if id(tensor) not in made and tensor.dtype == original.dtype:  # what is kept in float32 stays so
                tensor.data = tensor.data.to(dtype)
        self.blocks = repeated_blocks(self.transformer)
        self._conditions: list[tuple[Cond, Cond]] = []
        self._model = copy.copy(model)
        self._model.transformer = self.transformer

    def linear_layers(self) -> list[NamedLinear]:
        """See Copy; in diffusers' names."""
        return self._layers

    def values_changed(self) -> None:
        """See Copy."""
        self._conditions = []

    def velocity(self, x_t: Tensor, sigma: Tensor, cond: Cond, batch: int) -> Tensor:
        """See Copy; ``cond`` has a row for every sample, or one for all."""
        rows, fill = len(x_t), _fill(len(x_t), batch, x_t.device)
        return self._model.velocity(x_t[fill], sigma[fill], self._filled(cond, rows, len(fill)))[:rows]

    def _filled(self, cond: Cond, rows: int, batch: int) -> Cond:
        """A row for every sample of a batch; those of the last two conditions are kept, as guidance asks for two."""
        for known, told in self._conditions:
            if known is cond and len(told.embeds) == batch:
                return told
        fill = _fill(rows, batch, torch.device("cpu"))
        told = cond[fill if len(cond.embeds) == rows else torch.zeros_like(fill)]
        self._conditions = [*self._conditions[-1:], (cond, told)]
        return told


def _linear(transformer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Linear layers with their names; one with an adapter is one layer."""
    for name, module in transformer.named_modules():
        inner = getattr(module, "base_layer", None) if isinstance(module, LoraLayer) else module
        if isinstance(inner, nn.Linear) and not name.endswith(".base_layer") and ".lora_" not in name:
            yield name, module
