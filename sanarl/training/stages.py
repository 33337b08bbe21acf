"""From the candidates of a step to the samples that train: preview, regenerate, select.

candidates -> (preview, scored -> the most telling) -> full rollout, scored -> those that train

A sample's noise follows from its number among the candidates, so a regenerated sample starts where its preview did.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sanarl.maths.select import Mode, kendall, select, spearman, top_overlap
from sanarl.models.base import FlowModel
from sanarl.rewards.local import Scoring
from sanarl.rewards.mix import RewardError
from sanarl.rewards.remote import RemoteScoring
from sanarl.rollout.collect import Collected, Request, collect, on_all_ranks
from sanarl.rollout.evaluate import gather_scores
from sanarl.rollout.generate import Sampler
from sanarl.runtime.world import World
from sanarl.training.job import Job
from sanarl.types import Rollout


@dataclass(frozen=True)
class Preview:
    """How candidates are looked at first."""

    sampler: Sampler
    mode: str
    select: Mode
    regenerate: int
    """Samples of a prompt that are drawn again in full."""


@dataclass(frozen=True)
class Pool:
    """What is drawn of a prompt, and what of it trains."""

    candidates: int
    train: int
    select: Mode = "best_worst"
    mode: str = "peft"
    """What samples in full."""
    preview: Preview | None = None

    @property
    def regenerated(self) -> int:
        """Samples of a prompt that are drawn in full."""
        return self.candidates if self.preview is None else self.preview.regenerate


@dataclass(frozen=True)
class Draw:
    """One step's drawing: the rewards' home, and what noise and choices follow from."""

    scoring: Scoring | RemoteScoring
    deadline_s: float
    seed: int
    step: int


@dataclass(frozen=True)
class Asked:
    """The candidates of a step, over all ranks: sample number i is of prompt i // size."""

    items: list[dict[str, Any]]
    size: int

    def __len__(self) -> int:
        return len(self.items) * self.size

    @property
    def prompts(self) -> list[str]:
        """The prompt of every group's number."""
        return [item["prompt"] for item in self.items]

    @cached_property
    def _first(self) -> dict[str, int]:
        return {prompt: number for number, prompt in reversed(list(enumerate(self.prompts)))}

    def groups(self, ids: Tensor) -> Tensor:
        """Groups of samples (N,); equal prompts of a step are one group, with the number of the first."""
        return torch.tensor(
            [self._first[self.items[i // self.size]["prompt"]] for i in ids.tolist()], dtype=torch.int64
        )

    def request(self, ids: Tensor) -> Request:
        """What to sample for these numbers."""
        items = [self.items[i // self.size] for i in ids.tolist()]
        return Request([i["prompt"] for i in items], [i["metadata"] for i in items], ids, self.groups(ids))


@dataclass(frozen=True)
class Samples:
    """Scored samples of all ranks, of which this rank holds its share."""

    found: Collected
    request: Request
    """This rank's rows."""
    ids: Tensor  # (N,) of all ranks, ascending
    groups: Tensor  # (N,)
    scores: dict[str, Tensor]  # each (N,)


def draw(job: Job, asked: Asked, how: Draw, pool: Pool, sampler: Sampler, num_shown: int) -> tuple[Samples, dict]:
    """Draw the candidates, or preview them and draw the most telling, each with its scores.

    Args:
        job: with the policy and what samples for it.
        asked: the candidates. how: with what noise, scored by whom.
        pool: stages and their sizes. sampler: of full samples.
        num_shown: rows of this rank whose media are kept.

    Returns:
        The full samples, and metrics of the preview against them.

    Raises:
        RewardError: when a reward fails, on every rank when it does on any; the step before is saved then.
    """
    ids, preview, metrics = torch.arange(len(asked)), pool.preview, dict[str, float]()
    if preview is None:
        samples = _stage(job, asked, ids, how, sampler, pool.mode, num_shown)
    else:
        with job.session.timed("preview"):
            first = _stage(job, asked, ids, how, preview.sampler, preview.mode, 0, keep=False)
        rewards = first.scores["reward"]
        key = (how.seed, how.step, "preview")
        chosen = select(rewards, first.groups, preview.regenerate, pool.candidates, preview.select, *key)
        with job.session.timed("regenerate"):
            samples = _stage(job, asked, ids[chosen], how, sampler, pool.mode, num_shown)
        metrics = {"preview/reward_mean": float(rewards.mean())}
        metrics |= agreement(rewards[chosen], samples.scores["reward"], samples.groups, max(pool.train // 2, 1))
    if job.engine.replicas or job.engine.decoding is not None:
        metrics["rollout/recompiled"] = float(job.engine.recompiled())
    return samples, metrics


def agreement(preview: Tensor, full: Tensor, groups: Tensor, k: int) -> dict[str, float]:
    """How the rewards of previews rank the regenerated as their own do, each (N,); undefined measures are left out."""
    found = {
        "preview/spearman": spearman(preview, full, groups),
        "preview/kendall": kendall(preview, full, groups),
        "preview/top_overlap": top_overlap(preview, full, groups, k),
    }
    return {name: value for name, value in found.items() if value == value}


def _stage(
    job: Job, asked: Asked, ids: Tensor, how: Draw, sampler: Sampler, mode: str, num_shown: int, keep: bool = True
) -> Samples:
    """Samples of the old policy, drawn by ``mode``, with their scores."""
    session, policy = job.session, job.policy
    mine = session.world.rows(len(ids))
    request = asked.request(ids[mine.start : mine.stop])

    def work() -> Collected:
        with policy.old():
            return collect(
                job.engine.ready(mode),
                request,
                sampler,
                (how.seed, how.step),
                how.scoring,
                how.deadline_s,
                range(num_shown),
                keep=keep,
            )

    try:
        found = on_all_ranks(session.world, work)
    except RewardError:
        session.save_complete(job.export)
        raise
    return Samples(found, request, ids, asked.groups(ids), gather_scores(found, session.world, len(ids)))


def kept(samples: Samples, asked: Asked, pool: Pool, model: FlowModel, world: World, key: tuple[int, int]) -> Samples:
    """Those that train: ``pool.train`` of every prompt's, spread evenly over the ranks again.

    Args:
        samples: drawn in full. asked: the candidates. pool: how many, by which rule.
        model: encodes the prompts of rows that come from another rank. world: the ranks.
        key: (seed, step), for rules that draw.
    """
    if pool.train == pool.regenerated:
        return samples
    rows = select(samples.scores["reward"], samples.groups, pool.train, pool.regenerated, pool.select, *key, "train")
    ids = samples.ids[rows]
    scores = {name: value[rows] for name, value in samples.scores.items()}
    if world.size == 1:
        assert samples.found.rollout is not None, "a lone rank has all rows"
        rollout, request = samples.found.rollout[rows], asked.request(ids)
    else:
        rollout, request = _moved(samples, asked, rows, model, world)
    found = replace(samples.found, rollout=rollout, scores=None)
    return Samples(found, request, ids, samples.groups[rows], scores)


def _moved(
    samples: Samples, asked: Asked, rows: Tensor, model: FlowModel, world: World
) -> tuple[Rollout | None, Request]:
    """This rank's share of ``rows``, from whichever rank drew them; prompts are embedded again where they arrive."""
    held = samples.found.rollout
    latents = torch.zeros(0, *model.latent_shape) if held is None else held.latents
    levels = max(world.gather_objects(0 if held is None else held.sigmas.shape[1]))
    sigmas = torch.zeros(0, levels) if held is None else held.sigmas
    mine = world.rows(len(rows))
    here = rows[mine.start : mine.stop]
    latents, sigmas = (world.gather(x.float(), len(samples.ids))[here].to(world.device) for x in (latents, sigmas))
    request = asked.request(samples.ids[here])
    if not len(here):
        return None, request
    cond = model.encode_prompts(request.prompts)
    return Rollout(request.ids, request.groups, request.prompts, cond, latents, sigmas), request
