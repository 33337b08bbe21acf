"""Whether a mini-batch can fit into memory at all, before it is tried, and whether its size is one the model knows."""

import torch
from diffusers import AutoencoderDC

from sanarl.config import Config
from sanarl.errors import UserError
from sanarl.models.base import FlowModel
from sanarl.runtime.memory import ADVICE, available
from sanarl.runtime.session import size as words

STRETCH = 4
"""How many times the area that a model was made for is still nothing to remark on."""


def check_fits(model: FlowModel, config: Config, at_once: int, device: torch.device) -> None:
    """Refuse a mini-batch that cannot fit, however thriftily its media are decoded.

    Args:
        model: whose autoencoder decodes.
        config: says how large a sample is.
        at_once: samples of a mini-batch.
        device: where it decodes.

    Raises:
        UserError: with what it takes at least and what there is.
    """
    there, (height, width) = available(device), config.policy.diffusers.inference_size
    value = model.pipeline.vae.dtype.itemsize + 4  # as decoded, and in float32
    needed = at_once * config.sample_frames * 3 * height * width * value
    needed = max(needed, _decoding(model, config, at_once) if device.type == "cpu" else 0)
    if there is not None and needed > there:
        raise UserError(
            f"policy.diffusers.inference_size: found {[height, width]}; {at_once} sample(s) of that size take at least "
            f"{words(needed)} and {'the GPU' if device.type == 'cuda' else 'this machine'} has {words(there)}\n"
            f"  {ADVICE}"
        )


def _decoding(model: FlowModel, config: Config, at_once: int) -> int:
    """Bytes that some layer of an autoencoder for pictures reads and writes, which are held at the same time.

    On a GPU whole media that do not fit are decoded in tiles; a CPU's memory runs out without saying so first.
    """
    vae = model.pipeline.vae
    if config.policy.diffusers.vae_tiles is True or not isinstance(vae, AutoencoderDC):
        return 0
    levels = enumerate(zip(vae.config.decoder_block_out_channels, vae.config.decoder_layers_per_block, strict=True))
    widest = max(channels / 4**level for level, (channels, layers) in levels if layers)  # a level has half the side
    height, width = config.policy.diffusers.inference_size
    return int(2 * at_once * widest * height * width * vae.dtype.itemsize)


def stretched(model: FlowModel, config: Config) -> str | None:
    """A remark when samples are far larger than those that the model was made for; None when they are not."""
    transformer = model.transformer.config  # type: ignore[union-attr]  # of diffusers
    cells, (height, width) = transformer.get("sample_size"), config.policy.diffusers.inference_size
    if not isinstance(cells, int):
        return None
    patch = transformer.patch_size if isinstance(transformer.patch_size, int) else transformer.patch_size[-1]
    side = cells * patch * (height // model.latent_shape[-2])
    if height * width <= STRETCH * side**2:
        return None
    return (
        f"warning: {width}x{height} is {height * width / side**2:,.0f} times the area that "
        f"{config.policy.model_name_or_path} was made for ({side}x{side}): expect repeated or broken shapes"
    )
