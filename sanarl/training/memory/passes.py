"""What each pass through a run's models takes, found on shapes alone; a place that was measured once is remembered."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sanarl.config import Config
from sanarl.models import checkpointing
from sanarl.models.adapter import add_adapter
from sanarl.models.base import FlowModel
from sanarl.models.checkpointing import Checkpointing
from sanarl.models.footprint import saved_by, shadow, used
from sanarl.models.fused import fuse
from sanarl.models.tiles import enable_tiles
from sanarl.models.vae import codec
from sanarl.training import settings
from sanarl.training.modelling import fuses
from sanarl.types import Cond, unit

PARTITION = "aot_eager_decomp_partition"
"""torch.compile's backend that cuts a graph into forward and backward as inductor does, and generates no code."""


def transformer_shadow(config: Config, model: FlowModel) -> nn.Module:
    """The shadow of what will be trained on a GPU; before ranks cut it and before blocks are compiled."""
    found: nn.Module = shadow(model.transformer)
    if config.policy.lora is None:
        found.requires_grad_(True)
    else:
        with torch.device("meta"):
            add_adapter(found, settings.lora_settings(config), config.train.seed)
    if fuses(config, torch.device("cuda")):
        fuse(found)
    return found


def text_like(model: FlowModel) -> Cond:
    """What has the shapes of an embedded prompt, in the transformer's dtype."""
    like, dtype = model.blank(model.text_tokens), model.transformer.dtype
    parts = {n: torch.zeros_like(v, device="cpu", dtype=dtype) for n, v in vars(like).items() if v is not None}
    return Cond(**parts | {"mask": torch.ones_like(like.mask, device="cpu")})


@dataclass
class Passes:
    """Bytes at the peak of each pass, besides the weights."""

    model: FlowModel
    """Names the other models and how large a sample is."""
    transformer: nn.Module
    """The shadow of what is trained."""
    text: Callable[[], Cond]
    """One embedded prompt."""
    image_to_video: bool
    _found: dict[Any, Any] = field(default_factory=dict, init=False)

    @property
    def text_bytes(self) -> int:
        """Of one embedded prompt."""
        like: Cond = self._once("text", self.text)
        return sum(v[:1].numel() * v.element_size() for v in vars(like).values() if isinstance(v, Tensor))

    def training(self, how: Checkpointing, batch: int, guided: bool) -> int:
        """A forward and a backward pass in eager mode, with the gradients that they leave.

        ``guided``: of two predictions, with a prompt and without.
        """
        model = self._shadowed()

        def prepare() -> Callable[[], Any]:
            x, sigma, cond = self._inputs(batch)

            def run() -> None:
                v = model.velocity(x, sigma, cond)
                if guided:
                    v = v + (v - model.velocity(x, sigma, cond))
                ((v - x) ** 2).flatten(1).mean().backward()

            return run

        def find() -> int:
            checkpointing.set_checkpointing(self.transformer, how)
            try:
                return used([self.transformer], prepare, gradients=True).peak
            finally:
                checkpointing.set_checkpointing(self.transformer, "off")

        return int(self._once(("training", how, batch, guided), find))

    def fused_away(self) -> int:
        """Bytes a block and sample that compiled blocks do not save; about ten seconds."""
        model, (block, *_) = self._shadowed(), (blocks[0] for blocks in checkpointing.repeated(self.transformer))
        batch = 2

        def run() -> None:
            with torch.device("meta"):
                model.velocity(*self._inputs(batch))

        def find() -> int:
            eager, compiled = (saved_by([block], run, backend) for backend in (None, PARTITION))
            torch._dynamo.reset()
            return (eager - compiled) // batch

        return int(self._once("fused away", find))

    def sampling(self, batch: int, guided: bool) -> int:
        """A prediction without gradients."""
        model = self._shadowed()

        def prepare() -> Callable[[], Any]:
            x, sigma, cond = self._inputs(batch)
            kept = model.velocity(x, sigma, cond) if guided else None
            return lambda: (model.velocity(x, sigma, cond), kept)

        return self._peak(("sampling", batch, guided), lambda: [self.transformer], lambda _: prepare())

    def decoding(self, dtype: torch.dtype, batch: int, tiles: bool) -> int:
        """Latents to media."""

        def prepare(vae: nn.Module) -> Callable[[], Any]:
            latents = torch.zeros(batch, *self.model.latent_shape, dtype=dtype)
            decode = partial(codec(self.model.pipeline.vae).decode, vae)
            return lambda: (decode(latents).float() / 2 + 0.5).clamp(0, 1)

        return self._peak(("decoding", dtype, batch, tiles), lambda: [self._vae(dtype, tiles)], prepare)

    def encoding(self, dtype: torch.dtype, media: tuple[int, ...], tiles: bool) -> int:
        """8-bit media (B, F, 3, H, W) to latents."""

        def prepare(vae: nn.Module) -> Callable[[], Any]:
            pixels = torch.zeros(media, dtype=torch.uint8)
            encode = partial(codec(self.model.pipeline.vae).encode, vae)
            return lambda: encode((2 * unit(pixels.clone()) - 1).to(dtype))

        return self._peak(("encoding", dtype, media, tiles), lambda: [self._vae(dtype, tiles)], prepare)

    def reading(self, dtype: torch.dtype, batch: int, length: int) -> int:
        """Prompts to embeddings, by the text encoder that takes most."""

        def prepare(encoder: nn.Module) -> Callable[[], Any]:
            known = getattr(encoder.config, "max_position_embeddings", length)  # 77 of a CLIP
            tokens, mask = (torch.ones(batch, min(length, known), dtype=torch.int64) for _ in range(2))
            return lambda: encoder(tokens, attention_mask=mask)[0]

        peaks = [0]
        for place, each in enumerate(self.text_encoders):
            key = "reading", place, dtype, batch, length
            peaks.append(self._peak(key, lambda each=each: [_cast(shadow(each), dtype)], prepare))
        return max(peaks)

    @property
    def text_encoders(self) -> list[Any]:
        """Of the pipeline."""
        parts = self.model.pipeline.components
        return [part for name, part in parts.items() if name.startswith("text_encoder") and part is not None]

    # ---- on shapes alone

    def _once(self, key: Any, find: Callable[[], Any]) -> Any:
        if key not in self._found:
            self._found[key] = find()
        return self._found[key]

    def _peak(
        self, key: Any, shadows: Callable[[], list[nn.Module]], prepare: Callable[[nn.Module], Callable[[], Any]]
    ) -> int:
        """The peak without gradients of what ``prepare`` makes of the first shadow."""

        def find() -> int:
            made = shadows()
            return used(made, lambda: prepare(made[0])).peak

        return int(self._once(key, find))

    def _shadowed(self) -> Any:
        """The wrapper around the transformer's shadow."""
        model: Any = copy.copy(self.model)
        model.transformer, model.device = self.transformer, torch.device("cpu")
        return model

    def _inputs(self, batch: int) -> tuple[Tensor, Tensor, Cond]:
        """Noisy latents, noise levels and text of ``batch`` samples, made where tensors have shapes only."""
        like: Cond = self._once("text", self.text)
        parts = {
            name: torch.zeros(batch, *value.shape[1:], dtype=value.dtype)
            for name, value in vars(like).items()
            if isinstance(value, Tensor)
        }
        x = torch.zeros(batch, *self.model.latent_shape)
        if self.image_to_video:
            parts["first"] = torch.zeros_like(x[:, :, :1])
        return x, torch.ones(batch), replace(like, **parts)

    def _vae(self, dtype: torch.dtype, tiles: bool) -> nn.Module:
        def find() -> nn.Module:
            vae = _cast(shadow(self.model.pipeline.vae), dtype)
            if tiles:
                enable_tiles(vae)
            return vae

        found: nn.Module = self._once(("autoencoder", dtype, tiles), find)
        return found


def _cast(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A shadow with its weights in another dtype; the ways of diffusers and transformers warn of it."""
    return nn.Module.to(module, dtype)
