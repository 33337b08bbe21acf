"""Tokens of a picture, and the timestep shift that a scheduler has for so many of them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sanarl.errors import UserError
from sanarl.maths.flow import shift_of_tokens


def check_patches(latent_shape: Sequence[int], patch: int, size: tuple[int, int]) -> int:
    """Tokens that latents (C, ..., H, W) are cut into by patches of ``patch`` x ``patch`` cells, of all frames.

    Raises:
        UserError: when height or width is no multiple of that.
    """
    cells = latent_shape[-2:]
    if any(edge % patch for edge in cells):
        raise UserError(
            f"policy.diffusers.inference_size: found {list(size)}; that is {list(cells)} latent "
            f"cells, and the transformer takes them in patches of {patch}"
        )
    return math.prod(latent_shape[1:]) // patch**2


def flow_shift(scheduler: Mapping[str, Any], tokens: int) -> float:
    """The shift of a scheduler's configuration: a number, or one that grows with the tokens of a picture."""
    if not scheduler.get("use_dynamic_shifting"):
        return float(scheduler.get("flow_shift") or scheduler.get("shift") or 1.0)
    return shift_of_tokens(
        tokens,
        tokens_low=scheduler.get("base_image_seq_len", 256),
        tokens_high=scheduler.get("max_image_seq_len", 4096),
        low=scheduler.get("base_shift", 0.5),
        high=scheduler.get("max_shift", 1.15),
        exponential=scheduler.get("time_shift_type", "exponential") == "exponential",
    )
