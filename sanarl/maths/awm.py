"""Advantage Weighted Matching (Xue et al., arXiv:2509.25050): the flow-matching error in place of a log-probability.

The paper's policy gradient needs log p of a sample; up to a constant its lower bound is the negative weighted error of
flow matching, which pretraining minimises. Weights and powers are those of the published code
(https://github.com/scxue/advantage_weighted_matching, ``compute_log_prob_awm``), whose ``ghuber`` has every power.
"""

from torch import Tensor

from sanarl.maths.flow import per_sample

FLOOR = 1e-10
"""Added to the error, so that its power has a slope at 0."""


def matching_error(v: Tensor, x0: Tensor, noise: Tensor) -> Tensor:
    """Flow matching's squared error of a velocity, mean((v - (noise - x0))^2), a value a sample: (B,)."""
    return per_sample((v - (noise - x0)) ** 2)


def matching_log_prob(error: Tensor, sigma: Tensor, power: float) -> Tensor:
    """What stands for log p of a sample: -sigma ((e + 1e-10)^power - 1e-10^power) / power, (B,).

    Args:
        error: of flow matching, (B,).
        sigma: the noise level it was taken at, (B,).
        power: 1: the error itself, weighted by sigma; below 1, gradients of large errors count less (a generalised
            Huber loss).
    """
    found: Tensor = -sigma * ((error + FLOOR) ** power - FLOOR**power) / power
    return found
