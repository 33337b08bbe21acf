"""Flow-GRPO (Liu et al., arXiv:2505.05470): the ODE turned into an SDE with the same marginals."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sanarl.maths.flow import bcast, per_sample


class Transition(NamedTuple):
    """A Gaussian step p(x_next | x)."""

    mean: Tensor  # (B, C, ..., H, W)
    std: Tensor  # (B,)


def sde_transition(
    x: Tensor, v: Tensor, sigma: Tensor, sigma_next: Tensor, noise_level: float, sigma_max: float
) -> Transition:
    """One Euler-Maruyama step (arXiv:2505.05470, eq. 9) with diffusion a sqrt(sigma / (1 - sigma)).

    Args:
        x: latents at ``sigma`` (B,). v: velocity there.
        sigma_next: (B,), smaller than ``sigma``.
        noise_level: the paper's a.
        sigma_max: replaces sigma = 1, where the diffusion coefficient diverges.
    """
    dt = sigma_next - sigma  # negative
    diffusion = noise_level * (sigma / (1 - torch.where(sigma == 1, sigma_max, sigma))).sqrt()
    half = bcast(diffusion**2 / (2 * sigma), x)
    s, h = bcast(sigma, x), bcast(dt, x)
    return Transition(mean=x * (1 + half * h) + v * (1 + half * (1 - s)) * h, std=diffusion * (-dt).sqrt())


def log_prob(x_next: Tensor, p: Transition) -> Tensor:
    """Log-density averaged (not summed) over a sample's dimensions, as Flow-GRPO uses it: (B,)."""
    std = bcast(p.std, x_next)
    return per_sample(-((x_next - p.mean) ** 2) / (2 * std**2) - std.log() - 0.5 * math.log(2 * math.pi))
