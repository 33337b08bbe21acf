"""Sampling with stochastic steps, whose path is kept for the policy gradient."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from sanarl.maths import draw
from sanarl.maths.flow import bcast
from sanarl.maths.sde import Dynamics, log_prob
from sanarl.types import Path, onto


@dataclass(frozen=True)
class Stochastic:
    """Which steps of a sampler are stochastic, and how. The last step, onto sigma = 0, never is."""

    dynamics: Dynamics
    window: int
    """Stochastic steps of a sample (Flow-GRPO-Fast); all others follow the ODE."""
    first: int
    """First step that a window may start with."""
    end: int
    """Step that no window reaches; at most the last step."""
    keep_means: bool
    """Keep the steps' means too."""
    same_latent: bool
    """The samples of a group start from the same noise, so that only their steps tell them apart."""

    def starts(self, groups: Tensor, key: draw.Key) -> Tensor:
        """Where every sample's window starts, (B,): one draw a group and step of the run."""
        places = self.end - self.first - self.window + 1
        return self.first + (draw.uniform(groups, *key, "window") * places).long().clamp_max(places - 1)

    def sample_bytes(self, latent_shape: tuple[int, ...]) -> int:
        """Host memory that a sample's path takes."""
        kept = self.window + 1 + (self.window if self.keep_means else 0)
        return 4 * (kept * torch.Size(latent_shape).numel() + 2 * self.window + 1)


def walk(
    velocity: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    sigmas: list[float],
    ids: Tensor,
    starts: Tensor,
    how: Stochastic,
    key: draw.Key,
) -> tuple[Tensor, Path]:
    """Go from noise to latents: Euler's steps, and stochastic ones within every sample's window.

    Args:
        velocity: (latents, sigma (B,)) -> velocity.
        x: float32 noise (B, C, ..., H, W).
        sigmas: T + 1 noise levels, from 1 down to 0.
        ids: (B,) identities; the noise of a step depends on ``key``, the step and the id alone.
        starts: (B,) first stochastic step of every sample.
        how: the stochastic steps.
        key: what these samples are for.

    Returns:
        Clean latents, and the path of the stochastic steps.
    """
    batch = len(x)
    path = torch.empty(batch, how.window + 1, *x.shape[1:])
    levels = torch.empty(batch, how.window + 1)
    log_probs = torch.empty(batch, how.window)
    means = torch.empty(batch, how.window, *x.shape[1:]) if how.keep_means else None
    for step, (s, s_next) in enumerate(pairwise(sigmas)):
        sigma, sigma_next = (torch.full((batch,), value, device=x.device) for value in (s, s_next))
        v = velocity(x, sigma)
        after = x + bcast(sigma_next - sigma, x) * v
        place = step - starts
        rows = ((place >= 0) & (place < how.window)).nonzero().flatten()
        if len(rows):
            here, place = onto(rows, x.device), place[rows]
            p = how.dynamics.transition(x[here], v[here], sigma[here], sigma_next[here])
            noise = onto(draw.normal(ids[rows], x.shape[1:], *key, "step", step), x.device)
            drawn = p.mean + bcast(p.std, noise) * noise
            path[rows, place], path[rows, place + 1] = x[here].cpu(), drawn.cpu()
            levels[rows, place], levels[rows, place + 1] = s, s_next
            log_probs[rows, place] = log_prob(drawn, p).cpu()
            if means is not None:
                means[rows, place] = p.mean.cpu()
            after = after.index_copy(0, here, drawn)
        x = after
    return x, Path(path, levels, log_probs, means)
