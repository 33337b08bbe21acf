"""Stochastic steps of a rectified flow: Gaussian transitions p(x_next | x), their log-density and their distance.

sde   Flow-GRPO (Liu et al., arXiv:2505.05470, eq. 9): the ODE turned into an SDE with the same marginals
cps   coefficients-preserving sampling (Wang & Yu, arXiv:2509.05952): a DDIM step that draws part of its noise anew
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sanarl.maths.flow import bcast, per_sample

Kind = Literal["sde", "cps"]


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


def cps_transition(x: Tensor, v: Tensor, sigma: Tensor, sigma_next: Tensor, noise_level: float) -> Transition:
    """One step of coefficients-preserving sampling (arXiv:2509.05952), with eta = ``noise_level`` in [0, 1].

    x_next = (1 - sigma_next) x0 + sigma_next (cos(eta pi / 2) noise + sin(eta pi / 2) fresh noise), with the
    predictions x0 = x - sigma v and noise = x + (1 - sigma) v. The coefficients of data and of noise are those of the
    forward process at ``sigma_next`` whatever eta is; eta = 0 is Euler's step.

    Args:
        x: latents at ``sigma`` (B,). v: velocity there.
        sigma_next: (B,), smaller than ``sigma``.
        noise_level: share eta of the angle between predicted and fresh noise.
    """
    s, s_next = bcast(sigma, x), bcast(sigma_next, x)
    angle = noise_level * math.pi / 2
    mean = (1 - s_next) * (x - s * v) + s_next * math.cos(angle) * (x + (1 - s) * v)
    return Transition(mean, sigma_next * math.sin(angle))


@dataclass(frozen=True)
class Dynamics:
    """Which stochastic step is taken, by the sampler and by the loss alike."""

    kind: Kind
    noise_level: float
    sigma_max: float
    """Second noise level of the schedule; only ``sde`` uses it."""

    def transition(self, x: Tensor, v: Tensor, sigma: Tensor, sigma_next: Tensor) -> Transition:
        """The step from ``sigma`` (B,) to ``sigma_next`` (B,), in float32 or wider."""
        x, v = _wide(x), _wide(v)
        sigma, sigma_next = sigma.to(x.dtype), sigma_next.to(x.dtype)
        if self.kind == "cps":
            return cps_transition(x, v, sigma, sigma_next, self.noise_level)
        return sde_transition(x, v, sigma, sigma_next, self.noise_level, self.sigma_max)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def log_prob(x_next: Tensor, p: Transition) -> Tensor:
    """Log-density averaged (not summed) over a sample's dimensions, as Flow-GRPO uses it: (B,)."""
    std = bcast(p.std, x_next)
    return per_sample(-((x_next - p.mean) ** 2) / (2 * std**2) - std.log() - 0.5 * math.log(2 * math.pi))


def gaussian_kl(p: Transition, reference_mean: Tensor) -> Tensor:
    """KL(p || reference) of two Gaussians of equal deviation (arXiv:2505.05470, section 4.2), a dimension's mean: (B,).

    (mean - reference_mean)^2 / (2 std^2), averaged over a sample's dimensions as the log-density is.
    """
    return per_sample((p.mean - reference_mean) ** 2) / (2 * p.std**2)
