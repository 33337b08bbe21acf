"""Rectified flow, in the one convention used everywhere in sanarl.

    x_t = (1 - sigma) * x0 + sigma * noise        sigma = 0 is data, sigma = 1 is noise
    v   = d x_t / d sigma = noise - x0

Flow matching: Lipman et al., arXiv:2210.02747; straight paths: Liu et al., arXiv:2209.03003.
Every function takes latents of any rank >= 2 and, where it takes one, a per-sample ``sigma`` of shape (B,).
"""

import math
from typing import Literal

import torch
from torch import Tensor


def bcast(s: Tensor, like: Tensor) -> Tensor:
    """View ``s`` (B,) as (B, 1, ..., 1), so that it multiplies ``like`` sample by sample.

    Raises:
        ValueError: when ``s`` does not have exactly one value for each row of ``like``.
    """
    if s.shape != like.shape[:1]:
        raise ValueError(f"expected one value a sample, shape {tuple(like.shape[:1])}, got {tuple(s.shape)}")
    return s.view(-1, *[1] * (like.ndim - 1))


def per_sample(x: Tensor) -> Tensor:
    """Mean over every dimension but the batch: (B, ...) -> (B,)."""
    return x.flatten(1).mean(1)


def interpolate(x0: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
    """The noisy latents x_t at noise level ``sigma`` (B,)."""
    s = bcast(sigma, x0)
    return (1 - s) * x0 + s * noise


def to_x0(x_t: Tensor, v: Tensor, sigma: Tensor) -> Tensor:
    """The clean latents that a velocity points to: x0 = x_t - sigma * v."""
    return x_t - bcast(sigma, x_t) * v


def shifted(sigma: Tensor, shift: float) -> Tensor:
    """Timestep shift of SD3 (Esser et al., arXiv:2403.03206, eq. 23); shift 1 changes nothing."""
    return shift * sigma / (1 + (shift - 1) * sigma)


def shift_of_tokens(
    tokens: int, *, tokens_low: int, tokens_high: int, low: float, high: float, exponential: bool
) -> float:
    """The timestep shift for a picture of so many tokens, by the line mu from (tokens_low, low) to (tokens_high, high).

    FLUX.1 takes exp(mu), which turns its time shift exp(mu) / (exp(mu) + 1/sigma - 1) into ``shifted``; the linear kind
    takes mu itself. (Black Forest Labs' FLUX.1, as FluxPipeline has it; the idea is that of arXiv:2403.03206, eq. 23.)
    """
    mu = low + (high - low) * (tokens - tokens_low) / (tokens_high - tokens_low)
    return math.exp(mu) if exponential else mu


def schedule(num_steps: int, shift: float) -> Tensor:
    """Noise levels of a sampler: (num_steps + 1,) float64, from 1 down to exactly 0.

    ``num_steps`` evenly spaced levels 1, 1 - 1/n, ..., 1/n, shifted, and a final 0.
    """
    return torch.cat([shifted(torch.linspace(1, 1 / num_steps, num_steps, dtype=torch.float64), shift), torch.zeros(1)])


Density = Literal["uniform", "none", "logit_normal", "mode"]


def training_sigma(z: Tensor, density: Density, logit_mean: float, logit_std: float, shift: float) -> Tensor:
    """Noise levels to train on, from standard normal draws ``z`` (B,): (B,) in (0, 1).

    ``logit_normal``: sigmoid(mean + std z) (arXiv:2403.03206, section 3.1). ``uniform`` (also spelt ``none``): the
    normal's distribution function of z. ``mode``: the paper's eq. 20 with scale 1.29 on that uniform level. Then the
    timestep shift of eq. 23.
    """
    z = z.double()
    if density == "logit_normal":
        sigma = torch.sigmoid(logit_mean + logit_std * z)
    else:
        sigma = torch.special.ndtr(z)
        if density == "mode":
            sigma = 1 - sigma - 1.29 * (torch.cos(torch.pi / 2 * sigma) ** 2 - 1 + sigma)
    return shifted(sigma, shift)
