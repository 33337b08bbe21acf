"""From pixels to latents and back, through a frozen autoencoder that may wait on the CPU."""

from functools import partial

import torch
from torch import Tensor, nn

from sanarl.models.base import Use
from sanarl.models.offload import Visitor
from sanarl.models.tiles import Thrift
from sanarl.models.vae import codec
from sanarl.types import unit


class Pixels:
    """An autoencoder with its scale, in the memory there is."""

    def __init__(self, vae: nn.Module, channels: int, use: Use):
        """Place it and freeze it.

        Args:
            vae: of a class that has a codec.
            channels: of latents.
            use: size, frames, device, offload, tiles.

        Raises:
            UserError: when it does not fit this size.
        """
        self._device = use.device
        self._vae = Visitor(vae, use.device, stays=not use.offload)
        self._codec, self._thrift = codec(vae), Thrift(vae, use.vae_tiles)
        self.latent_shape: tuple[int, ...] = self._codec.latent_shape(channels, use.frames, use.size)
        self._decoded_at_once = 0  # fewer are filled up

    @torch.no_grad()
    def encode(self, media: Tensor, mini_batch: int) -> Tensor:
        """(B, F, 3, H, W) in [0, 1], or uint8 -> latents float32, in the scale that the transformer sees."""
        with self._vae.here() as vae:
            parts = [
                self._thrift(partial(self._codec.encode, vae), (2 * unit(part.to(self._device)) - 1).to(vae.dtype))
                for part in media.split(mini_batch)
            ]
        return torch.cat(parts).float()

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Latents -> media (B, F, 3, H, W) float32 in [0, 1]."""
        rows, batch = len(latents), max(self._decoded_at_once, len(latents))
        latents = latents if batch == rows else latents[torch.arange(batch, device=latents.device).clamp(max=rows - 1)]
        with self._vae.here() as vae:
            pixels = self._thrift(partial(self._codec.decode, vae), latents.to(vae.dtype))[:rows]
        return (pixels.float() / 2 + 0.5).clamp(0, 1)

    def compile_decoder(self, batch: int) -> None:
        """Compile decoding, channels last, for ``batch`` samples at once: fewer are filled up."""
        decoder = self._vae.module.decoder.to(memory_format=torch.channels_last)
        decoder.compile(dynamic=False)
        self._decoded_at_once = batch
