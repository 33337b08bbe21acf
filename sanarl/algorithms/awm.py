"""Advantage Weighted Matching (Xue et al., arXiv:2509.25050): pretraining's loss, weighted by advantages.

With the published code's ratio, clip range and two anchors: the reference, and the old policy, which follows the
learner as a moving average. Departure: here the old policy also samples, as with that code's ``off_policy``; with
weight_copy_decay_type = 0 it is the learner at the start of every rollout.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sanarl.algorithms import forward
from sanarl.algorithms.forward import Noised, noised
from sanarl.maths import draw
from sanarl.maths.awm import matching_error, matching_log_prob
from sanarl.maths.flow import per_sample
from sanarl.maths.grpo import clipped_surrogate
from sanarl.maths.nft import restrict
from sanarl.models.policy import Policy
from sanarl.types import Rollout, Term


@dataclass(frozen=True, kw_only=True)
class Settings(forward.Settings):
    """The algorithm's own numbers; names as in the configuration."""

    matching_power: float
    epsilon_low: float
    epsilon_high: float
    old_kl_beta: float


def terms(policy: Policy, rollout: Rollout, settings: Settings, key: draw.Key) -> Iterator[Term]:
    """The terms of one optimiser step: for every mini-batch, one for each noise level that is trained on.

    The loss is policy_loss + kl_beta * mean((v - v_reference)^2) + old_kl_beta * mean((v - v_old)^2).

    Args:
        policy: under the learner's values.
        rollout: B samples with advantages (B,).
        settings: see there.
        key: what this optimiser step is, for example (seed, step, update).
    """
    assert rollout.advantages is not None, "advantages come before the loss"
    clip = settings.advantage_clip
    advantages = restrict(rollout.advantages, settings.advantage_mode, clip) / clip
    for one in noised(rollout, settings.mini_batch, settings.timesteps_fraction, key):
        loss, metrics = _loss(policy, one, advantages[one.rows], settings)
        yield Term(loss, one.weight, metrics)


def _loss(policy: Policy, one: Noised, advantages: Tensor, settings: Settings) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss () and metrics of a mini-batch at one noise level a sample. The learner's pass is the last of the three."""
    x0, cond = one.part.latents, one.part.cond
    v_old = v_reference = None
    with torch.no_grad():
        if not policy.old_is_learner:
            with policy.old():
                v_old = policy.velocity(one.x_t, one.sigma, cond)
        if settings.kl_beta > 0:
            with policy.reference():
                v_reference = policy.velocity(one.x_t, one.sigma, cond)
    v = policy.velocity(one.x_t, one.sigma, cond)
    if v_old is None:  # equal values give equal predictions, bit by bit
        v_old = v.detach()

    def log_prob(velocity: Tensor) -> Tensor:
        return matching_log_prob(matching_error(velocity, x0, one.noise), one.sigma, settings.matching_power)

    log_ratio = log_prob(v) - log_prob(v_old)
    surrogate = clipped_surrogate(log_ratio, advantages.to(x0.dtype), settings.epsilon_low, settings.epsilon_high)
    policy_loss, moved = surrogate.loss.mean(), per_sample((v - v_old) ** 2).mean()
    loss = policy_loss + settings.old_kl_beta * moved
    ratio = log_ratio.detach().exp()
    metrics = {
        "policy_loss": policy_loss.detach(),
        "matching_error": matching_error(v.detach(), x0, one.noise).mean(),
        "clip_fraction": surrogate.clipped.mean(),
        "ratio": ratio.mean(),
        "ratio_deviation": (ratio - 1).abs().mean(),
        "old_deviate": moved.detach(),
        "x0_norm": per_sample(x0**2).mean(),
    }
    if v_reference is None:
        return loss, metrics
    kl = per_sample((v - v_reference) ** 2).mean()
    metrics |= {"kl_div_loss": kl.detach(), "old_kl_div": per_sample((v_old - v_reference) ** 2).mean()}
    return loss + settings.kl_beta * kl, metrics
