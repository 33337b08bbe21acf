"""Whether a mini-batch can fit into memory at all, before it is tried."""

import torch
from torch import nn

from sanarl.errors import UserError
from sanarl.models.base import FlowModel
from sanarl.runtime.memory import ADVICE, available
from sanarl.runtime.session import size as words


def check_fits(model: FlowModel, size: tuple[int, int], frames: int, at_once: int, device: torch.device) -> None:
    """Refuse a mini-batch whose decoding cannot fit.

    Args:
        model: whose autoencoder decodes.
        size: height and width of a sample. frames: of a sample.
        at_once: samples of a mini-batch.
        device: where it decodes.

    Raises:
        UserError: with what it takes at least and what there is.
    """
    there = available(device)
    needed = at_once * frames_at_once(model, frames) * size[0] * size[1] * bytes_per_pixel(model.pipeline.vae)
    if there is not None and needed > there:
        raise UserError(
            f"policy.diffusers.inference_size: found {list(size)}; decoding {at_once} sample(s) of that size takes at "
            f"least {words(needed)} and {'the GPU' if device.type == 'cuda' else 'this machine'} has {words(there)}\n"
            f"  {ADVICE}"
        )


def frames_at_once(model: FlowModel, frames: int) -> int:
    """Frames that the last layer sees together: causal autoencoders go through a clip in pieces, of one at least."""
    return 1 if len(model.latent_shape) == 4 else frames


def bytes_per_pixel(vae: nn.Module) -> int:
    """A lower bound of what decoding a pixel takes: what goes into the last convolution, and the pixel itself."""
    last = [m for m in vae.decoder.modules() if isinstance(m, nn.Conv2d | nn.Conv3d)][-1]
    patch = getattr(vae.config, "patch_size", None) or 1
    return last.in_channels * last.weight.element_size() // patch**2 + 3 * 4
