"""Deterministic samplers for a rectified flow, as pure steps on (latents, velocity, noise levels).

All of them solve d x / d sigma = v(x, sigma) from sigma = 1 to sigma = 0. With the data prediction
x0(x, sigma) = x - sigma v and alpha = 1 - sigma, lambda = log(alpha / sigma):

    flow    Euler's method on v
    ddim    Song et al., arXiv:2010.02502, eq. 12 without noise; for a rectified flow it is Euler's step
    dpm1    DPM-Solver++(1), Lu et al., arXiv:2211.01095, eq. 4 (data prediction); again the same step
    dpm2    DPM-Solver++(2M), the same paper, algorithm 2; its last step, onto sigma = 0, is of first order
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

Solver = Literal["flow", "euler", "ddim", "dpm1", "dpm2"]


def _first_order(x: Tensor, x0: Tensor, s: float, s_next: float) -> Tensor:
    """x_next = (sigma_next / sigma) x + (alpha_next - alpha sigma_next / sigma) x0."""
    ratio = s_next / s
    return ratio * x + ((1 - s_next) - ratio * (1 - s)) * x0


def _log_snr(s: float) -> float:
    """lambda(sigma) = log((1 - sigma) / sigma); infinite at both ends."""
    one = torch.tensor(1.0, dtype=torch.float64)
    return float(torch.log((one - s) / s))


def solve(velocity: Callable[[Tensor, float], Tensor], x: Tensor, sigmas: list[float], solver: Solver) -> Tensor:
    """Integrate from ``sigmas[0]`` to ``sigmas[-1]``.

    Args:
        velocity: (latents, sigma) -> velocity of the same shape.
        x: latents at sigmas[0], any shape.
        sigmas: noise levels, strictly descending; a first level of 1 and a last of 0 are allowed.
        solver: one of the table above; ``euler`` is another name for ``flow``.

    Returns:
        Latents at sigmas[-1].

    Raises:
        ValueError: when ``sigmas`` does not descend.
    """
    if any(b >= a for a, b in pairwise(sigmas)):
        raise ValueError(f"noise levels must descend, got {sigmas}")
    x0_previous: Tensor | None = None
    h_previous = 0.0
    for s, s_next in pairwise(sigmas):
        v = velocity(x, s)
        if solver in ("flow", "euler"):
            x = x + (s_next - s) * v
            continue
        x0 = x - s * v
        if solver != "dpm2" or s_next == 0.0:
            x = _first_order(x, x0, s, s_next)
            continue
        h = _log_snr(s_next) - _log_snr(s)  # infinite on the step that leaves sigma = 1
        if x0_previous is None:
            x = _first_order(x, x0, s, s_next)
        else:
            # 2M: extrapolate the data prediction to the middle of the step; r = h_previous / h (0 from sigma = 1).
            slope = (x0 - x0_previous) * (h / h_previous)
            x = _first_order(x, x0 + 0.5 * slope, s, s_next)
        x0_previous, h_previous = x0, h
    return x
