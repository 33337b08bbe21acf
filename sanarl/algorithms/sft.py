"""Supervised fine-tuning: conditional flow matching (Lipman et al., arXiv:2210.02747, eq. 9) on captioned latents."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from sanarl.maths import draw
from sanarl.maths.flow import Density, interpolate, per_sample, training_sigma
from sanarl.models.policy import Policy
from sanarl.types import Cond, Term, onto


@dataclass(frozen=True)
class Settings:
    """Which noise levels are trained on, how many samples a backward pass takes, and how often captions are dropped."""

    mini_batch: int
    density: Density
    logit_mean: float
    logit_std: float
    flow_shift: float
    caption_dropout: float = 0.0
    image_to_video: bool = False
    """Give the first latent frame and train the others on it."""


def terms(
    policy: Policy,
    latents: list[torch.Tensor],
    captions: list[str],
    ids: torch.Tensor,
    settings: Settings,
    key: draw.Key,
    num_terms: int = 0,
    cond: Cond | None = None,
) -> Iterator[Term]:
    """The terms of one optimiser step: mean squared error of the velocity, a mini-batch a term.

    A mini-batch holds latents of one size.

    Args:
        policy: under the learner's values.
        latents: of B clean samples, (C, ..., H, W) each, in the model's scale; sizes may differ.
        captions: B strings.
        ids: (B,) int64, identity of each sample: its noise and noise level depend on ``key`` and its id alone.
        settings: see there.
        key: what this step is, for example (seed, step).
        num_terms: at least so many terms; those beyond the samples have no weight, and only keep up with ranks that
            have more.
        cond: the embeddings of ``told(captions, ...)``, where they are there already.
    """
    if len(ids):  # torch splits none into one empty batch
        if cond is None:  # once a step, so that an offloaded encoder visits the device once
            cond = policy.model.encode_prompts(told(captions, ids, settings, key))
        yield from _samples(policy, latents, cond, ids, settings, key)
    for _ in range(num_terms - count_terms(latents, settings.mini_batch)):
        x = torch.zeros(1, *policy.model.latent_shape, device=policy.model.device)
        v = policy.velocity(x, torch.ones(1, device=x.device), policy.model.encode_prompts([""]))
        yield Term(v.square().mean(), weight=0.0, metrics={"sigma": torch.zeros((), device=x.device)})


def told(captions: list[str], ids: torch.Tensor, settings: Settings, key: draw.Key) -> list[str]:
    """The captions that samples are trained with: some are dropped, by their identity."""
    drawn = draw.uniform(ids, *key, "caption").tolist()
    return ["" if u < settings.caption_dropout else text for text, u in zip(captions, drawn, strict=True)]


def count_terms(latents: list[torch.Tensor], mini_batch: int) -> int:
    """How many terms so many samples make: a mini-batch holds latents of one size."""
    return sum(-(-len(members) // mini_batch) for members in by_shape(latents))


def _samples(
    policy: Policy,
    latents: list[torch.Tensor],
    cond: Cond,
    ids: torch.Tensor,
    settings: Settings,
    key: draw.Key,
) -> Iterator[Term]:
    """The terms that hold samples."""
    for members in by_shape(latents):
        for rows in torch.tensor(members).split(settings.mini_batch):
            x0 = torch.stack([latents[row] for row in rows.tolist()])
            noise = onto(draw.normal(ids[rows], x0.shape[1:], *key, "noise"), x0.device)
            z = draw.normal(ids[rows], (), *key, "sigma")
            sigma = training_sigma(z, settings.density, settings.logit_mean, settings.logit_std, settings.flow_shift)
            sigma = onto(sigma.to(x0.dtype), x0.device)
            given = replace(cond[rows], first=x0[:, :, :1]) if settings.image_to_video else cond[rows]
            error = policy.velocity(interpolate(x0, noise, sigma), sigma, given) - (noise - x0)
            if settings.image_to_video:
                error = error[:, :, 1:]  # (B, C, F - 1, H, W): what is given is not predicted
            loss = per_sample(error**2).mean()
            yield Term(loss, weight=len(rows) / len(ids), metrics={"sigma": sigma.mean()})


def by_shape(samples: list[torch.Tensor]) -> list[list[int]]:
    """The places in ``samples`` of each shape, shapes in the order in which they come."""
    places: dict[torch.Size, list[int]] = {}
    for place, sample in enumerate(samples):
        places.setdefault(sample.shape, []).append(place)
    return list(places.values())
