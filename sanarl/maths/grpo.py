"""The clipped policy gradient of Flow-GRPO (arXiv:2505.05470), and GRPO-Guard's two corrections (arXiv:2510.22319)."""

from typing import NamedTuple

import torch
from torch import Tensor

from sanarl.maths.flow import per_sample
from sanarl.maths.sde import Transition


class Surrogate(NamedTuple):
    """Per-sample loss, and where the clip stops the gradient, each (B,)."""

    loss: Tensor
    clipped: Tensor  # 1 where the clipped side counts, else 0


def clipped_surrogate(log_ratio: Tensor, advantages: Tensor, low: float, high: float) -> Surrogate:
    """PPO's surrogate as Flow-GRPO minimises it (arXiv:2505.05470, eq. 5), a value a sample.

    -min(ratio A, clip(ratio, 1 - low, 1 + high) A). At ratio 1 its gradient is that of -A log p.

    Args:
        log_ratio: log p - log p_old (B,); carries gradient.
        advantages: (B,).
        low: clip range below 1. high: clip range above 1.
    """
    ratio = log_ratio.exp()
    free, held = ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages
    return Surrogate(-torch.minimum(free, held), (held < free).to(ratio.dtype))


def normalised_log_ratio(x_next: Tensor, p: Transition, old_mean: Tensor) -> Tensor:
    """RatioNorm of GRPO-Guard (arXiv:2510.22319, eq. 8): std (log ratio + |mean - old_mean|^2 / (2 std^2)), (B,).

    The bias that keeps the ratio's mean below 1 is added back and the deviation of all steps made the same. Written
    out it is mean((x_next - old_mean) (mean - old_mean)) / std, in which nothing large cancels.

    Args:
        x_next: where the old policy's step led. p: the learner's step. old_mean: of the old policy's step.
    """
    return per_sample((x_next - old_mean) * (p.mean - old_mean)) / p.std


def step_weight(sigma: Tensor, sigma_next: Tensor) -> Tensor:
    """GRPO-Guard's weight of a step in the policy loss, 1 / (sigma - sigma_next): (B,) (arXiv:2510.22319, eq. 12).

    The paper's factor beta is constant for Flow-GRPO's diffusion coefficient and left out.
    """
    return 1 / (sigma - sigma_next)
