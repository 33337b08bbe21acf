"""Autoencoders behind one interface: pixels (B, F, 3, H, W) in [-1, 1] <-> latents in the model's scale.

``codec(vae)`` picks by the autoencoder's class. Posteriors are taken at their mode, so encoding draws nothing.
"""

from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from diffusers import AutoencoderDC, AutoencoderKL, AutoencoderKLLTX2Video, AutoencoderKLWan
from torch import Tensor, nn

from sanarl.errors import UserError
from sanarl.models.tiles import decode_in_time, encode_in_time


class Codec(Protocol):
    """How an autoencoder is fed and read; the module itself is handed in, wherever it is at the time."""

    def latent_shape(self, channels: int, frames: int, size: tuple[int, int]) -> tuple[int, ...]:
        """Shape of one sample's latents for media of ``frames`` frames of ``size`` (height, width) pixels."""

    def encode(self, vae: nn.Module, media: Tensor) -> Tensor:
        """Pixels -> latents, in the autoencoder's dtype, on its device."""

    def decode(self, vae: nn.Module, latents: Tensor) -> Tensor:
        """Latents -> pixels, not yet clamped."""


@dataclass(frozen=True)
class PictureCodec:
    """AutoencoderDC (DC-AE, arXiv:2410.10733): latents (B, C, H/f, W/f), times the configuration's scaling_factor."""

    factor: int

    def latent_shape(self, channels: int, frames: int, size: tuple[int, int]) -> tuple[int, ...]:
        """(C, H/f, W/f); a picture has one frame."""
        if frames != 1:
            raise UserError(f"this model makes pictures, so a sample has 1 frame; found {frames}")
        return (channels, *_cells(size, self.factor))

    def encode(self, vae: nn.Module, media: Tensor) -> Tensor:
        """(B, 1, 3, H, W) -> (B, C, H/f, W/f)."""
        return vae.encode(media[:, 0]).latent * vae.config.scaling_factor

    def decode(self, vae: nn.Module, latents: Tensor) -> Tensor:
        """(B, C, H/f, W/f) -> (B, 1, 3, H, W)."""
        return vae.decode(latents / vae.config.scaling_factor).sample[:, None]


@dataclass(frozen=True)
class ShiftedCodec:
    """AutoencoderKL (arXiv:2112.10752): latents (B, C, H/f, W/f), less the configuration's shift, times its scale."""

    factor: int
    shift: float
    scale: float

    def latent_shape(self, channels: int, frames: int, size: tuple[int, int]) -> tuple[int, ...]:
        """(C, H/f, W/f); a picture has one frame."""
        return PictureCodec(self.factor).latent_shape(channels, frames, size)

    def encode(self, vae: nn.Module, media: Tensor) -> Tensor:
        """(B, 1, 3, H, W) -> (B, C, H/f, W/f)."""
        return (vae.encode(media[:, 0]).latent_dist.mode() - self.shift) * self.scale

    def decode(self, vae: nn.Module, latents: Tensor) -> Tensor:
        """(B, C, H/f, W/f) -> (B, 1, 3, H, W)."""
        return vae.decode(latents / self.scale + self.shift).sample[:, None]


@dataclass(frozen=True)
class ClipCodec:
    """Causal video autoencoders: latents (B, C, (F - 1)/t + 1, H/f, W/f), less their mean, over their deviation."""

    temporal: int
    factor: int
    mean: Tensor  # (C,)
    std: Tensor  # (C,)
    streams: bool
    """Whether the autoencoder works through time piece by piece of its own accord, as Wan's does."""

    def latent_shape(self, channels: int, frames: int, size: tuple[int, int]) -> tuple[int, ...]:
        """(C, (F - 1)/t + 1, H/f, W/f).

        Raises:
            UserError: when the frames are not one more than a multiple of t.
        """
        if (frames - 1) % self.temporal:
            raise UserError(
                f"policy.diffusers.inference_frames: found {frames}; the autoencoder takes one frame more than a "
                f"multiple of {self.temporal}"
            )
        return (channels, (frames - 1) // self.temporal + 1, *_cells(size, self.factor))

    def _normal(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation as (1, C, 1, 1, 1) in the dtype and on the device of ``like``."""
        mean, std = (x.to(like.device, like.dtype).view(1, -1, 1, 1, 1) for x in (self.mean, self.std))
        return mean, std

    def encode(self, vae: nn.Module, media: Tensor) -> Tensor:
        """(B, F, 3, H, W) -> (B, C, (F - 1)/t + 1, H/f, W/f)."""
        clip = media.transpose(1, 2)
        if self.streams or not vae.use_tiling:
            latents = self._encode(vae, clip)
        else:
            latents = encode_in_time(partial(self._encode, vae), clip, self.temporal)
        mean, std = self._normal(latents)
        return (latents - mean) / std

    def decode(self, vae: nn.Module, latents: Tensor) -> Tensor:
        """(B, C, (F - 1)/t + 1, H/f, W/f) -> (B, F, 3, H, W)."""
        mean, std = self._normal(latents)
        latents = latents * std + mean
        if self.streams or not vae.use_tiling:
            clip = self._decode(vae, latents)
        else:
            clip = decode_in_time(partial(self._decode, vae), latents, self.temporal)
        return clip.transpose(1, 2)

    def _encode(self, vae: nn.Module, clip: Tensor) -> Tensor:
        return vae.encode(clip).latent_dist.mode()

    def _decode(self, vae: nn.Module, latents: Tensor) -> Tensor:
        return vae.decode(latents, return_dict=False)[0]  # (B, 3, F, H, W)


def _cells(size: tuple[int, int], factor: int) -> tuple[int, int]:
    if any(edge % factor for edge in size):
        raise UserError(
            f"policy.diffusers.inference_size: found {list(size)}; the autoencoder works in cells of {factor} pixels, "
            "so height and width must be multiples of that"
        )
    return size[0] // factor, size[1] // factor


def codec(vae: nn.Module) -> Codec:
    """The codec of an autoencoder.

    Raises:
        UserError: for a class that has none.
    """
    if isinstance(vae, AutoencoderDC):
        return PictureCodec(2 ** (len(vae.config.encoder_block_out_channels) - 1))
    if isinstance(vae, AutoencoderKL):
        config, factor = vae.config, 2 ** (len(vae.config.block_out_channels) - 1)
        return ShiftedCodec(factor, config.shift_factor or 0.0, config.scaling_factor)
    if isinstance(vae, AutoencoderKLWan):
        mean, std = (torch.tensor(x) for x in (vae.config.latents_mean, vae.config.latents_std))
        return ClipCodec(vae.config.scale_factor_temporal, vae.config.scale_factor_spatial, mean, std, streams=True)
    if isinstance(vae, AutoencoderKLLTX2Video):
        return ClipCodec(
            vae.config.temporal_compression_ratio,
            vae.config.spatial_compression_ratio,
            vae.latents_mean.clone(),
            vae.latents_std.clone(),
            streams=False,
        )
    raise UserError(f"no way is known to use the autoencoder {type(vae).__name__}")
