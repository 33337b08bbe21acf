"""Autoencoders in the memory there is: whole media, else one sample at a time, else overlapping tiles."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from diffusers import AutoencoderKL
from torch import Tensor

TILE, STRIDE = 256, 192
"""Pixels of a tile's side, and from one to the next; what overlaps is blended linearly."""
PIECE, CONTEXT = 4, 4
"""The same in time, in latent frames: how many are computed at once, and how many beside them are only looked at."""


def enable_tiles(vae: Any) -> None:
    """Let an autoencoder of diffusers encode and decode in tiles from now on."""
    if isinstance(vae, AutoencoderKL):  # its tiles are square, and set by attributes
        vae.enable_tiling()
        vae.tile_sample_min_size = TILE
        vae.tile_latent_min_size = TILE // 2 ** (len(vae.config.block_out_channels) - 1)
        vae.tile_overlap_factor = 1 - STRIDE / TILE
        return
    vae.enable_tiling(
        tile_sample_min_height=TILE,
        tile_sample_min_width=TILE,
        tile_sample_stride_height=STRIDE,
        tile_sample_stride_width=STRIDE,
    )


def _pieces(count: int) -> Iterator[tuple[int, int, int, int]]:
    """(first, end, first with context, end with context) of pieces of ``count`` latent frames."""
    for first in range(0, count, PIECE):
        end = min(first + PIECE, count)
        yield first, end, max(first - CONTEXT, 0), min(end + CONTEXT, count)


def encode_in_time(encode: Callable[[Tensor], Tensor], clip: Tensor, t: int) -> Tensor:
    """``encode`` over pieces of ``clip`` (B, 3, F, H, W), t frames to a latent frame: (B, C, (F - 1)/t + 1, ...)."""
    parts = []
    for first, end, begin, stop in _pieces((clip.shape[2] - 1) // t + 1):
        part = encode(clip[:, :, t * begin : t * (stop - 1) + 1])  # its first latent frame is of a single frame
        parts.append(part[:, :, first - begin : end - begin])
    return torch.cat(parts, dim=2)


def decode_in_time(decode: Callable[[Tensor], Tensor], latents: Tensor, t: int) -> Tensor:
    """``decode`` over pieces of ``latents`` (B, C, T, H, W), t frames to a latent frame: (B, 3, t (T - 1) + 1, ...)."""
    parts = []
    for first, end, begin, stop in _pieces(latents.shape[2]):
        part = decode(latents[:, :, begin:stop])  # its frame 0 is frame t * begin of the whole
        start = t * (first - 1) + 1 if first else 0
        parts.append(part[:, :, start - t * begin : t * (end - 1) + 1 - t * begin])
    return torch.cat(parts, dim=2)


class Thrift:
    """Runs an autoencoder on a batch within the memory there is.

    Args:
        vae: tiled at once when ``tiles`` is true.
        tiles: "auto": when memory runs out, the batch is cut into single samples, which changes nothing but rounding;
            when it runs out for a single sample, tiles are used from then on, and a warning says so.
    """

    def __init__(self, vae: Any, tiles: bool | Literal["auto"]):
        self._vae, self._may_tile = vae, tiles == "auto"
        if tiles is True:
            enable_tiles(vae)

    def __call__(self, run: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
        """``run(batch)``, however it fits.

        Raises:
            torch.OutOfMemoryError: when nothing helps.
        """
        try:
            return run(batch)
        except torch.OutOfMemoryError:
            if not self._may_tile and len(batch) == 1:
                raise
        if torch.cuda.is_available():  # outside of the except: the error held what the attempt had allocated
            torch.cuda.empty_cache()
        if len(batch) > 1:
            return torch.cat([self(run, sample) for sample in batch.split(1)])
        self._may_tile = False
        enable_tiles(self._vae)
        warnings.warn(
            f"memory ran out for one sample {tuple(batch.shape)} in the autoencoder: from now on it works in tiles of "
            f"{TILE} pixels (policy.diffusers.vae_tiles = true does so from the start)",
            RuntimeWarning,
            stacklevel=2,
        )
        return self(run, batch)
