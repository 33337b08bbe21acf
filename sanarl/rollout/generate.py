"""Sampling from a policy."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from sanarl.maths import draw
from sanarl.maths.flow import schedule
from sanarl.maths.solvers import Solver, solve
from sanarl.models.base import Source
from sanarl.rollout.stochastic import Stochastic, walk
from sanarl.types import Cond, Rollout, onto


@dataclass(frozen=True)
class Sampler:
    """How to get from noise to latents."""

    num_steps: int
    guidance_scale: float
    solver: Solver
    flow_shift: float
    mini_batch: int
    """Samples computed at once; changes no result beyond rounding."""
    stochastic: Stochastic | None = None
    """Steps that are not the solver's; None: all are."""
    decode_scale: float = 1.0
    """Side of the media, of the full one: latents are shrunk before they are decoded."""

    @property
    def sigmas(self) -> Tensor:
        """Noise levels, (num_steps + 1,) float64, from 1 to 0."""
        return schedule(self.num_steps, self.flow_shift)


@torch.no_grad()
def generate(
    source: Source,
    prompts: list[str],
    ids: Tensor,
    groups: Tensor,
    sampler: Sampler,
    key: draw.Key,
    first: Tensor | None = None,
) -> Iterator[tuple[Tensor, Rollout, Tensor]]:
    """Sample one picture or clip for every entry of ``prompts``, a mini-batch at a time.

    Args:
        source: a policy under the values that shall sample, or a copy that has them.
        prompts: B strings, repeated as often as samples are wanted.
        ids: (B,) int64, identity of each sample; its starting noise depends on ``key`` and its id alone.
        groups: (B,) int64, group of each sample.
        sampler: steps, guidance, solver.
        key: what these samples are for, for example (seed, step).
        first: (B, 1, 3, H, W) in [0, 1], the frame that each clip starts from, of image-to-video.

    Yields:
        (rows (b,) int64, the samples of these rows, their media (b, F, 3, H, W)).
    """
    if not prompts:  # torch splits no rows into one empty batch
        return
    model, device = source.model, source.model.device
    cond = model.encode_prompts(prompts)
    empty = source.empty_prompt(sampler.guidance_scale)
    sigmas, how = sampler.sigmas.tolist(), sampler.stochastic
    same = groups if how is not None and how.same_latent else ids
    for rows in torch.arange(len(prompts)).split(sampler.mini_batch):
        part = cond[rows]
        if first is not None:
            part = replace(part, first=model.encode_media(first[rows], len(rows)))
        velocity = _Velocity(source, part, empty, sampler.guidance_scale)
        noise = onto(draw.normal(same[rows], model.latent_shape, *key, "noise"), device)
        path = None
        if how is None:
            latents = solve(velocity.at, noise, sigmas, sampler.solver)
        else:
            latents, path = walk(velocity, noise, sigmas, ids[rows], how.starts(groups[rows], key), how, key)
        rollout = Rollout(
            ids=ids[rows],
            groups=groups[rows],
            prompts=[prompts[i] for i in rows.tolist()],
            cond=part,
            latents=latents,
            sigmas=torch.tensor(sigmas[:-1], device=device).expand(len(rows), -1),
            path=path,
        )
        yield rows, rollout, model.decode(shrunk(latents, sampler.decode_scale))


def shrunk(latents: Tensor, scale: float) -> Tensor:
    """Latents (B, C, ..., H, W) with sides of ``scale`` by the mean over cells, as pictures are made smaller."""
    if scale == 1.0:
        return latents
    height, width = (round(edge * scale) for edge in latents.shape[-2:])
    flat = F.interpolate(latents.flatten(1, -3), size=(height, width), mode="area")
    return flat.unflatten(1, latents.shape[1:-2])


@dataclass(frozen=True)
class _Velocity:
    """The velocity of samples with their prompts."""

    source: Source
    cond: Cond
    empty: Cond | None
    guidance_scale: float

    def __call__(self, x: Tensor, sigma: Tensor) -> Tensor:
        return self.source.guided_velocity(x, sigma, self.cond, self.empty, self.guidance_scale)

    def at(self, x: Tensor, sigma: float) -> Tensor:
        """At one noise level for all samples."""
        return self(x, torch.full((len(x),), sigma, device=x.device))
