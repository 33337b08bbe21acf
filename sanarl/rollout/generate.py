"""Sampling from a policy."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sanarl.maths import draw
from sanarl.maths.flow import schedule
from sanarl.maths.solvers import Solver, solve
from sanarl.models.policy import Policy
from sanarl.types import Cond, Rollout


@dataclass(frozen=True)
class Sampler:
    """How to get from noise to latents."""

    num_steps: int
    guidance_scale: float
    solver: Solver
    flow_shift: float
    mini_batch: int
    """Samples computed at once; changes no result beyond rounding."""

    @property
    def sigmas(self) -> Tensor:
        """Noise levels, (num_steps + 1,) float64, from 1 to 0."""
        return schedule(self.num_steps, self.flow_shift)


def guided(policy: Policy, cond: Cond, empty: Cond | None, guidance_scale: float) -> Callable[[Tensor, float], Tensor]:
    """The velocity as a function of (latents, sigma), with classifier-free guidance (Ho & Salimans, arXiv:2207.12598).

    v = v(empty) + guidance_scale * (v(prompt) - v(empty)); a scale of 1 or less needs no second pass.
    """

    def velocity(x: Tensor, s: float) -> Tensor:
        sigma = torch.full((len(x),), s, device=x.device)
        v = policy.velocity(x, sigma, cond)
        if empty is None:
            return v
        v_empty = policy.velocity(x, sigma, empty)
        return v_empty + guidance_scale * (v - v_empty)

    return velocity


@torch.no_grad()
def generate(
    policy: Policy,
    prompts: list[str],
    ids: Tensor,
    groups: Tensor,
    sampler: Sampler,
    key: draw.Key,
) -> Iterator[tuple[Tensor, Rollout, Tensor]]:
    """Sample one picture or clip for every entry of ``prompts``, a mini-batch at a time.

    Args:
        policy: under the values that shall sample.
        prompts: B strings, repeated as often as samples are wanted.
        ids: (B,) int64, identity of each sample; its starting noise depends on ``key`` and its id alone.
        groups: (B,) int64, group of each sample.
        sampler: steps, guidance, solver.
        key: what these samples are for, for example (seed, step).

    Yields:
        (rows (b,) int64, the samples of these rows, their media (b, F, 3, H, W)).
    """
    if not prompts:  # torch splits no rows into one empty batch
        return
    model, device = policy.model, policy.model.transformer.device
    cond = model.encode_prompts(prompts)
    empty = model.encode_prompts([""]) if sampler.guidance_scale > 1 else None
    sigmas = sampler.sigmas.tolist()
    for rows in torch.arange(len(prompts)).split(sampler.mini_batch):
        part = cond[rows]
        no_prompt = empty[torch.zeros(len(rows), dtype=torch.int64)] if empty is not None else None
        noise = draw.normal(ids[rows], model.latent_shape, *key, "noise").to(device)
        latents = solve(guided(policy, part, no_prompt, sampler.guidance_scale), noise, sigmas, sampler.solver)
        rollout = Rollout(
            ids=ids[rows],
            groups=groups[rows],
            prompts=[prompts[i] for i in rows.tolist()],
            cond=part,
            latents=latents,
            sigmas=torch.tensor(sigmas[:-1], device=device).expand(len(rows), -1),
        )
        yield rows, rollout, model.decode(latents)
