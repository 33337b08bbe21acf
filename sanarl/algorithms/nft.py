"""DiffusionNFT (Zheng et al., arXiv:2509.16117): which terms to differentiate, and how old follows the learner."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sanarl.algorithms import forward
from sanarl.algorithms.forward import Noised, noised
from sanarl.maths import draw
from sanarl.maths.flow import per_sample
from sanarl.maths.nft import nft_loss, optimality, restrict
from sanarl.models.policy import Policy
from sanarl.types import Rollout, Term


@dataclass(frozen=True, kw_only=True)
class Settings(forward.Settings):
    """The algorithm's own numbers; names as in the configuration."""

    nft_beta: float


def terms(policy: Policy, rollout: Rollout, settings: Settings, key: draw.Key) -> Iterator[Term]:
    """The terms of one optimiser step: for every mini-batch, one for each noise level that is trained on.

    The loss is clip * policy_loss + kl_beta * mean((v - v_reference)^2).

    Args:
        policy: under the learner's values.
        rollout: B samples with advantages (B,).
        settings: see there.
        key: what this optimiser step is, for example (seed, step, update).
    """
    assert rollout.advantages is not None, "advantages come before the loss"
    clip = settings.advantage_clip
    r = optimality(restrict(rollout.advantages, settings.advantage_mode, clip), clip)
    for one in noised(rollout, settings.mini_batch, settings.timesteps_fraction, key):
        loss, metrics = _loss(policy, one, r[one.rows], settings)
        yield Term(loss, one.weight, metrics)


def _loss(policy: Policy, one: Noised, r: Tensor, settings: Settings) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss () and metrics of a mini-batch at one noise level a sample. The learner's pass is the last of the three."""
    x0, x_t, sigma, cond = one.part.latents, one.x_t, one.sigma, one.part.cond
    v_old = v_reference = None
    with torch.no_grad():
        if not policy.old_is_learner:
            with policy.old():
                v_old = policy.velocity(x_t, sigma, cond)
        if settings.kl_beta > 0:
            with policy.reference():
                v_reference = policy.velocity(x_t, sigma, cond)
    v = policy.velocity(x_t, sigma, cond)
    if v_old is None:  # equal values give equal predictions, bit by bit
        v_old = v.detach()
    out = nft_loss(v, v_old, x0, x_t, sigma, r.to(x0.dtype), settings.nft_beta)
    policy_loss = settings.advantage_clip * out.policy.mean()
    with torch.no_grad():
        metrics = {
            "policy_loss": policy_loss.detach(),
            "positive_loss": out.positive.detach().mean(),
            "negative_loss": out.negative.detach().mean(),
            "old_deviate": per_sample((v.detach() - v_old) ** 2).mean(),
            "x0_norm": per_sample(x0**2).mean(),
        }
    loss = policy_loss
    if v_reference is not None:
        kl = per_sample((v - v_reference) ** 2).mean()
        loss = loss + settings.kl_beta * kl
        metrics |= {
            "kl_div_loss": kl.detach(),
            "old_kl_div": per_sample((v_old - v_reference) ** 2).mean(),
        }
    return loss, metrics
