"""DiffusionNFT (Zheng et al., arXiv:2509.16117): which terms to differentiate, and how old follows the learner."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sanarl.maths import draw
from sanarl.maths.flow import interpolate, per_sample
from sanarl.maths.nft import AdvantageMode, kept_timesteps, nft_loss, old_policy_decay, optimality, restrict
from sanarl.models.policy import Policy
from sanarl.types import Rollout, Term, onto


@dataclass(frozen=True)
class Settings:
    """The algorithm's own numbers; names as in the configuration."""

    mini_batch: int
    nft_beta: float
    kl_beta: float
    advantage_clip: float
    advantage_mode: AdvantageMode
    timesteps_fraction: float
    decay_type: int
    decay_value: float = 0.0
    decay_steps: int = 1


def terms(policy: Policy, rollout: Rollout, settings: Settings, key: draw.Key) -> Iterator[Term]:
    """The terms of one optimiser step: for every mini-batch, one for each noise level that is trained on.

    A sample is trained on its own noise levels in its own order, at ``kept_timesteps`` of the rollout's T.
    The loss is clip * policy_loss + kl_beta * mean((v - v_reference)^2).

    Args:
        policy: under the learner's values.
        rollout: B samples with advantages (B,).
        settings: see there.
        key: what this optimiser step is, for example (seed, step, update).
    """
    batch, visited = rollout.sigmas.shape
    kept = kept_timesteps(visited, settings.timesteps_fraction)
    order = draw.permutations(rollout.ids, visited, *key, "sigma")[:, :kept]
    sigmas = rollout.sigmas.gather(1, onto(order, rollout.sigmas.device))  # (B, kept)
    assert rollout.advantages is not None, "advantages come before the loss"
    clip = settings.advantage_clip
    r = optimality(restrict(rollout.advantages, settings.advantage_mode, clip), clip)
    for rows in torch.arange(batch).split(settings.mini_batch):
        part = rollout[rows]
        there = onto(rows, sigmas.device)
        for j in range(kept):
            noise = onto(draw.normal(part.ids, part.latents.shape[1:], *key, "noise", j), part.latents.device)
            loss, metrics = _loss(policy, part, noise, sigmas[there, j], r[there], settings)
            yield Term(loss, weight=len(rows) / batch / kept, metrics=metrics)


def _loss(
    policy: Policy, part: Rollout, noise: Tensor, sigma: Tensor, r: Tensor, settings: Settings
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss () and metrics of a mini-batch at one noise level a sample. The learner's pass is the last of the three."""
    x0 = part.latents
    sigma = sigma.to(x0.dtype)
    x_t = interpolate(x0, noise, sigma)
    v_old = v_reference = None
    with torch.no_grad():
        if not policy.old_is_learner:
            with policy.old():
                v_old = policy.velocity(x_t, sigma, part.cond)
        if settings.kl_beta > 0:
            with policy.reference():
                v_reference = policy.velocity(x_t, sigma, part.cond)
    v = policy.velocity(x_t, sigma, part.cond)
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


def after_rollout(policy: Policy, updates: int, settings: Settings) -> None:
    """Let the old values follow the learner's, ``updates`` optimiser steps into the run."""
    policy.blend_old(old_policy_decay(updates, settings.decay_type, settings.decay_value, settings.decay_steps))
