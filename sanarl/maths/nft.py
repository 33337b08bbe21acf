"""DiffusionNFT (Zheng et al., arXiv:2509.16117): an implicit positive and negative policy on the forward process.

Departures from the paper's notation: the guidance strength beta is ``nft_beta``; advantages are clipped to
+-``clip`` and mapped to r in [0, 1] (eq. 9 of the paper uses the same r with its own normaliser); the squared error of
the data prediction is divided by its own detached mean absolute error, as the published code does (adaptive weighting
in place of the paper's w(t)).
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sanarl.maths.flow import bcast, per_sample, to_x0

AdvantageMode = Literal["all", "positive_only", "negative_only", "one_only", "binary"]


class NFTLoss(NamedTuple):
    """Per-sample losses and the two sides they are made of, each (B,)."""

    policy: Tensor
    positive: Tensor
    negative: Tensor


def restrict(advantages: Tensor, mode: AdvantageMode, clip: float) -> Tensor:
    """Clip advantages (B,) to +-``clip`` and keep what ``mode`` asks for.

    ``positive_only`` and ``negative_only`` zero the other side, ``one_only`` gives 1 for a positive advantage and 0
    otherwise, ``binary`` gives the sign.
    """
    a = advantages.clamp(-clip, clip)
    match mode:
        case "all":
            return a
        case "positive_only":
            return a.clamp_min(0)
        case "negative_only":
            return a.clamp_max(0)
        case "one_only":
            return (a > 0).to(a.dtype)
        case "binary":
            return a.sign()


def optimality(advantages: Tensor, clip: float) -> Tensor:
    """Probability r in [0, 1] that a sample is positive, (B,); 1/2 at advantage 0 (arXiv:2509.16117, eq. 9)."""
    return advantages.clamp(-clip, clip) / (2 * clip) + 0.5


def _self_normalised_error(x0_hat: Tensor, x0: Tensor) -> Tensor:
    """Mean of (x0_hat - x0)^2 over a sample, divided by its own detached mean |x0_hat - x0| (at least 1e-5): (B,)."""
    with torch.no_grad():
        scale = per_sample((x0_hat.double() - x0.double()).abs()).clamp_min(1e-5).to(x0.dtype)
    return per_sample((x0_hat - x0) ** 2 / bcast(scale, x0))


def nft_loss(v: Tensor, v_old: Tensor, x0: Tensor, x_t: Tensor, sigma: Tensor, r: Tensor, nft_beta: float) -> NFTLoss:
    """The policy loss of DiffusionNFT (arXiv:2509.16117, eq. 5 and algorithm 1), a value a sample.

    Args:
        v: the learner's velocity (B, C, ..., H, W); carries gradient.
        v_old: velocity of the policy that sampled ``x0``; must not carry gradient.
        x0: clean latents. x_t: the same noised to ``sigma`` (B,).
        r: optimality (B,) in [0, 1].
        nft_beta: strength of the implicit policies; v+ = beta v + (1 - beta) v_old, v- = (1 + beta) v_old - beta v.

    Returns:
        policy = (r L+ + (1 - r) L-) / beta, and L+, L-, each (B,). Latents are promoted to float32 or wider.
    """
    v, v_old = v.to(x0.dtype), v_old.to(x0.dtype)
    positive = _self_normalised_error(to_x0(x_t, nft_beta * v + (1 - nft_beta) * v_old, sigma), x0)
    negative = _self_normalised_error(to_x0(x_t, (1 + nft_beta) * v_old - nft_beta * v, sigma), x0)
    return NFTLoss((r * positive + (1 - r) * negative) / nft_beta, positive, negative)


def old_policy_decay(update: int, kind: int, value: float = 0.0, steps: int = 1) -> float:
    """How much of the old values survives when they follow the learner: old <- d old + (1 - d) learner.

    Args:
        update: optimiser updates made so far.
        kind: 0: d = 0 (copy). 1: min(0.001 i, 0.5). 2: 0 up to update 75, then 0.0075 an update up to 0.999.
            3: rises linearly to ``value`` at update ``steps`` and stays there.

    Raises:
        ValueError: for another kind.
    """
    match kind:
        case 0:
            return 0.0
        case 1:
            return min(0.001 * update, 0.5)
        case 2:
            return min(max(update - 75, 0) * 0.0075, 0.999)
        case 3:
            return value * min(update / steps, 1.0)
        case _:
            raise ValueError(f"no decay of kind {kind}; there are 0, 1, 2 and 3")


def kept_timesteps(num_steps: int, fraction: float) -> int:
    """How many of a rollout's noise levels are trained on: max(1, floor(T * fraction + 1e-9))."""
    return max(1, int(num_steps * fraction + 1e-9))
