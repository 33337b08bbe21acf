"""Whether a mini-batch can fit into memory at all, before it is tried."""

import torch

from sanarl.config import Config
from sanarl.errors import UserError
from sanarl.models.base import FlowModel
from sanarl.runtime.memory import ADVICE, available
from sanarl.runtime.session import size as words


def check_fits(model: FlowModel, config: Config, at_once: int, device: torch.device) -> None:
    """Refuse a mini-batch whose media alone cannot fit, however thriftily they are decoded.

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
    if there is not None and needed > there:
        raise UserError(
            f"policy.diffusers.inference_size: found {[height, width]}; {at_once} sample(s) of that size take at least "
            f"{words(needed)} and {'the GPU' if device.type == 'cuda' else 'this machine'} has {words(there)}\n"
            f"  {ADVICE}"
        )
