"""What algorithms that train on the forward process share: noised samples, and how old follows the learner.

The forward process is a rollout's clean samples with noise on top, at some of the noise levels they passed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sanarl.maths import draw
from sanarl.maths.flow import interpolate
from sanarl.maths.nft import AdvantageMode, kept_timesteps, old_policy_decay
from sanarl.models.policy import Policy
from sanarl.types import Rollout, onto


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Numbers that these algorithms share; names as in the configuration."""

    mini_batch: int
    kl_beta: float
    advantage_clip: float
    advantage_mode: AdvantageMode
    timesteps_fraction: float
    decay_type: int
    decay_value: float = 0.0
    decay_steps: int = 1


@dataclass(frozen=True)
class Noised:
    """A mini-batch at one noise level a sample."""

    part: Rollout
    rows: Tensor  # (b,) int64, of the rollout, on its device
    noise: Tensor  # (b, C, ..., H, W)
    sigma: Tensor  # (b,)
    x_t: Tensor  # (b, C, ..., H, W)
    weight: float
    """Its share of the step; they add up to 1."""


def noised(rollout: Rollout, mini_batch: int, timesteps_fraction: float, key: draw.Key) -> Iterator[Noised]:
    """Every mini-batch of a rollout at each noise level that is trained on.

    A sample is trained on its own noise levels in its own order, at ``kept_timesteps`` of the rollout's T.

    Args:
        rollout: B samples.
        mini_batch: samples of one pass.
        timesteps_fraction: share of the T noise levels.
        key: what this optimiser step is, for example (seed, step, update).
    """
    batch, visited = rollout.sigmas.shape
    kept = kept_timesteps(visited, timesteps_fraction)
    order = draw.permutations(rollout.ids, visited, *key, "sigma")[:, :kept]
    sigmas = rollout.sigmas.gather(1, onto(order, rollout.sigmas.device))  # (B, kept)
    for rows in torch.arange(batch).split(mini_batch):
        part = rollout[rows]
        there = onto(rows, sigmas.device)
        for j in range(kept):
            noise = onto(draw.normal(part.ids, part.latents.shape[1:], *key, "noise", j), part.latents.device)
            sigma = sigmas[there, j].to(part.latents.dtype)
            x_t = interpolate(part.latents, noise, sigma)
            yield Noised(part, there, noise, sigma, x_t, len(rows) / batch / kept)


def after_rollout(policy: Policy, updates: int, settings: Settings) -> None:
    """Let the old values follow the learner's, ``updates`` optimiser steps into the run."""
    policy.blend_old(old_policy_decay(updates, settings.decay_type, settings.decay_value, settings.decay_steps))
