"""Flow-GRPO (Liu et al., arXiv:2505.05470): the clipped policy gradient along recorded stochastic steps.

With GRPO-Guard's corrections (arXiv:2510.22319) where asked for. Departures from the published code: the last step,
onto sigma = 0, is never stochastic, and the KL term is that of the steps' Gaussians, with their whole variance.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sanarl.maths import draw
from sanarl.maths.grpo import clipped_surrogate, normalised_log_ratio, step_weight
from sanarl.maths.nft import AdvantageMode, kept_timesteps, restrict
from sanarl.maths.sde import Dynamics, Transition, gaussian_kl, log_prob
from sanarl.models.policy import Policy
from sanarl.types import Cond, Path, Rollout, Term, onto

RATIO_ERROR = "ratio_error"
"""Peak of |ratio - 1| on the first optimiser step of a rollout, where rollout and learner should agree."""


@dataclass(frozen=True)
class Settings:
    """The algorithm's own numbers; names as in the configuration."""

    mini_batch: int
    dynamics: Dynamics
    guidance_scale: float
    epsilon_low: float
    epsilon_high: float
    kl_beta: float
    advantage_clip: float
    advantage_mode: AdvantageMode
    timesteps_fraction: float
    ratio_norm: bool
    step_reweighting: bool

    @property
    def tolerance(self) -> float:
        """How far the ratio may be from 1 before anything was learnt: a tenth of the clip range."""
        return min(self.epsilon_low, self.epsilon_high) / 10


def terms(policy: Policy, rollout: Rollout, settings: Settings, key: draw.Key) -> Iterator[Term]:
    """The terms of one optimiser step: for every mini-batch, one for each stochastic step that is trained on.

    A sample is trained on steps of its own choice, min(K, ``kept_timesteps`` of T) of its K stochastic ones.

    Args:
        policy: under the learner's values.
        rollout: B samples with advantages (B,) and the path of their stochastic steps.
        settings: see there.
        key: what this optimiser step is, for example (seed, step, update).
    """
    assert rollout.advantages is not None, "advantages come before the loss"
    assert rollout.path is not None, "there is no policy gradient without a path"
    batch, steps = len(rollout.ids), rollout.path.sigmas.shape[1] - 1
    kept = min(steps, kept_timesteps(rollout.sigmas.shape[1], settings.timesteps_fraction))
    order = draw.permutations(rollout.ids, steps, *key, "sigma")[:, :kept]  # (B, kept)
    empty = policy.empty_prompt(settings.guidance_scale)
    for rows in torch.arange(batch).split(settings.mini_batch):
        part = rollout[rows]
        for j in range(kept):
            loss, metrics, peaks = _loss(policy, part, _step(part, order[rows, j]), empty, settings)
            yield Term(loss, len(rows) / batch / kept, metrics, peaks)


@dataclass(frozen=True)
class _Step:
    """One stochastic step of b samples, on the device that computes."""

    x: Tensor  # (b, C, ..., H, W)
    x_next: Tensor  # (b, C, ..., H, W)
    sigma: Tensor  # (b,)
    sigma_next: Tensor  # (b,)
    log_prob: Tensor | None  # (b,) when it was sampled
    mean: Tensor | None  # (b, C, ..., H, W) when it was sampled


def _step(part: Rollout, place: Tensor) -> _Step:
    """Step number ``place`` (b,) of every sample's path."""
    path, device = part.path, part.latents.device
    assert isinstance(path, Path), "checked by the caller"
    rows = torch.arange(len(place))
    x, x_next, sigma, sigma_next = (
        onto(values[rows, place + after], device) for values in (path.latents, path.sigmas) for after in (0, 1)
    )
    log_prob_, mean = (
        None if values is None or path.log_probs is None else onto(values[rows, place], device)
        for values in (path.log_probs, path.means)
    )
    return _Step(x, x_next, sigma, sigma_next, log_prob_, mean)


def _loss(
    policy: Policy, part: Rollout, step: _Step, empty: Cond | None, settings: Settings
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Loss (), metrics and peaks of one step a sample. The learner's pass is the last of all."""

    def moved() -> Transition:
        v = policy.guided_velocity(step.x, step.sigma, part.cond, empty, settings.guidance_scale)
        return settings.dynamics.transition(step.x, v, step.sigma, step.sigma_next)

    old = reference = None
    with torch.no_grad():
        if step.log_prob is None and not policy.old_is_learner:
            with policy.old():
                old = moved()
        if settings.kl_beta > 0:
            with policy.reference():
                reference = moved()
    p = moved()
    log_ratio, peaks = _log_ratio(step, p, old, policy.old_is_learner, settings)
    assert part.advantages is not None, "checked by the caller"
    advantages = restrict(part.advantages, settings.advantage_mode, settings.advantage_clip).to(log_ratio.dtype)
    surrogate = clipped_surrogate(log_ratio, advantages, settings.epsilon_low, settings.epsilon_high)
    weight = step_weight(step.sigma, step.sigma_next) if settings.step_reweighting else torch.ones_like(step.sigma)
    policy_loss = (weight * surrogate.loss).mean()
    ratio = log_ratio.detach().exp()
    metrics = {
        "policy_loss": policy_loss.detach(),
        "clip_fraction": surrogate.clipped.mean(),
        "ratio": ratio.mean(),
        "ratio_deviation": (ratio - 1).abs().mean(),
    }
    if reference is None:
        return policy_loss, metrics, peaks
    kl = gaussian_kl(p, reference.mean).mean()
    return policy_loss + settings.kl_beta * kl, metrics | {"kl_div_loss": kl.detach()}, peaks


def _log_ratio(
    step: _Step, p: Transition, old: Transition | None, old_is_learner: bool, settings: Settings
) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-ratio (b,) of learner and old policy, and how far it is from 0 where both are the same.

    The old policy's side is what was recorded, or ``old``. Where old still is the learner, the learner's own prediction
    takes the place of a recorded one that is more than ``settings.tolerance`` off.
    """

    def against(log_p: Tensor, mean: Tensor) -> Tensor:
        if settings.ratio_norm:
            return normalised_log_ratio(step.x_next, p, mean)
        return log_prob(step.x_next, p) - log_p

    own = log_prob(step.x_next, p).detach(), p.mean.detach()
    if step.log_prob is None:
        log_ratio = against(*own) if old is None else against(log_prob(step.x_next, old), old.mean)
        return log_ratio, {}
    recorded = against(step.log_prob, own[1] if step.mean is None else step.mean)
    if not old_is_learner:
        return recorded, {}
    error = recorded.detach().expm1().abs()
    return torch.where(error > settings.tolerance, against(*own), recorded), {RATIO_ERROR: error.max()}


def after_rollout(policy: Policy) -> None:
    """Let the next rollout come from the learner."""
    policy.blend_old(0.0)
