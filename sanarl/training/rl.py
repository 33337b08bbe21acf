"""Reinforcement learning on groups of samples.

config -> data -> policy -> rollout -> reward -> advantage -> loss terms -> optimiser -> checkpoint

Rows go to ranks evenly; rewards are gathered, so that every rank computes all advantages.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sanarl.algorithms import flow_grpo, nft
from sanarl.data.loading import Loader
from sanarl.maths import draw
from sanarl.maths.advantage import group_advantages, group_statistics
from sanarl.models.policy import Policy
from sanarl.rewards.local import Scoring
from sanarl.rewards.mix import RewardError
from sanarl.rewards.remote import RemoteScoring
from sanarl.rollout import preview
from sanarl.rollout.collect import Collected, Request, collect, on_all_ranks, picture_statistics
from sanarl.rollout.evaluate import gather_scores, gather_thumbnails
from sanarl.rollout.generate import Sampler
from sanarl.runtime.world import World
from sanarl.training.job import Job
from sanarl.types import Term


@dataclass(frozen=True)
class Setup:
    """What a run of reinforcement learning is told."""

    prompts_per_step: int
    group_size: int
    updates_per_pass: int
    """Optimiser steps that one pass over a rollout feeds."""
    mu_iterations: int
    global_std: bool
    sampler: Sampler
    settings: nft.Settings | flow_grpo.Settings
    seed: int
    deadline_s: float
    show_every: int | None
    """Steps between sheets of rollouts; None: no sheets."""

    def shows(self, step: int) -> bool:
        """Whether a sheet of this step's first group is due."""
        return self.show_every is not None and step % self.show_every == 0


def train(job: Job, loader: Loader, scoring: Scoring | RemoteScoring, setup: Setup) -> int:
    """Run every step that is left.

    Returns:
        The exit code: 0, or 130 / 143 after a signal.

    Raises:
        RewardError: when a reward fails; what is complete was saved.
    """
    session, policy, world = job.session, job.policy, job.session.world
    job.begin()
    for step in session.steps(job.export):
        with session.timed("step"):
            request, groups, prompts = ask(loader, step, world, setup)  # data
            with session.timed("rollout"):
                found = sample(job, request, scoring, step, setup)  # policy -> rollout
            scores = gather_scores(found, world, len(groups))  # reward
            session.rewards(step, "train", prompts, groups, scores)
            advantages = group_advantages(scores["reward"], groups, setup.global_std)  # advantage
            with session.timed("train"):
                updates = update(job, found, request, groups, advantages, step, setup)  # loss terms -> optimiser
                after_rollout(policy, session.progress.updates, setup.settings)
            metrics = mean_of(updates) | reward_metrics(scores, groups) | picture_metrics(found, groups, world)
            show(job, found, request, step, setup)
            if metrics["zero_std_ratio"] == 1:
                session.console.line(
                    f"step {step}: the rewards of every group are all equal; such a step teaches nothing"
                )
            metrics = job.conclude(step, metrics)
        session.log(step, metrics)
    return session.signals.exit_code


def ask(loader: Loader, step: int, world: World, setup: Setup) -> tuple[Request, Tensor, list[str]]:
    """This rank's rows of a step, the group of every row (B,), and the prompt of every group's number.

    Equal prompts of a step are one group; it has the number of the first.
    """
    prompts, size = setup.prompts_per_step, setup.group_size
    items = loader.take((step - 1) * prompts, range(prompts))
    first = {item["prompt"]: number for number, item in reversed(list(enumerate(items)))}
    groups = torch.tensor([first[items[row // size]["prompt"]] for row in range(prompts * size)])
    rows = world.rows(prompts * size)
    ids = torch.tensor(rows, dtype=torch.int64)
    request = Request(
        prompts=[items[row // size]["prompt"] for row in rows],
        metadata=[items[row // size]["metadata"] for row in rows],
        ids=ids,
        groups=groups[ids],
    )
    return request, groups, [item["prompt"] for item in items]


def sample(job: Job, request: Request, scoring: Scoring | RemoteScoring, step: int, setup: Setup) -> Collected:
    """Samples of the old policy with their scores.

    Raises:
        RewardError: when a reward fails, on every rank when it does on any; the step before is saved then.
    """
    policy, session = job.policy, job.session
    shown = range(setup.group_size if setup.shows(step) else 0)

    def work() -> Collected:
        with policy.old():
            return collect(policy, request, setup.sampler, (setup.seed, step), scoring, setup.deadline_s, shown)

    try:
        return on_all_ranks(session.world, work)
    except RewardError:
        session.save_complete(job.export)
        raise


def update(
    job: Job, found: Collected, request: Request, groups: Tensor, advantages: Tensor, step: int, setup: Setup
) -> list[dict[str, float]]:
    """Every optimiser step that a rollout feeds, each with its metrics."""
    done: list[dict[str, float]] = []
    for number, rows in enumerate(slices(groups, step, setup)):
        terms = slice_terms(job, found, request, rows, advantages, (setup.seed, step, number), setup)
        done.append(job.update(*terms, step))
        if isinstance(setup.settings, flow_grpo.Settings) and flow_grpo.RATIO_ERROR in done[-1]:
            found = checked(found, done[-1], setup.settings)
            if done[-1]["recomputed_log_probs"] and step == 1:
                error, most = done[-1][flow_grpo.RATIO_ERROR], setup.settings.tolerance
                job.session.console.line(
                    f"step 1: before any update ratios are up to {error:.1e} off 1, more than a tenth of the clip "
                    f"range ({most:.1e}); log-probabilities of rollouts are computed again with the learner's code, "
                    "here and in every step where that is so"
                )
    return done


def checked(found: Collected, metrics: dict[str, float], settings: flow_grpo.Settings) -> Collected:
    """The rollout for the next optimiser steps, without log-probabilities that the first one did not confirm.

    Flow-GRPO then computes them with the learner's code; ``metrics`` says whether it does.
    """
    off = metrics[flow_grpo.RATIO_ERROR] > settings.tolerance
    metrics["recomputed_log_probs"] = float(off)
    if not off or found.rollout is None or found.rollout.path is None:
        return found
    return replace(found, rollout=replace(found.rollout, path=replace(found.rollout.path, log_probs=None)))


def after_rollout(policy: Policy, updates: int, settings: nft.Settings | flow_grpo.Settings) -> None:
    """Let the old values, which sample the next rollout, follow the learner's."""
    if isinstance(settings, nft.Settings):
        nft.after_rollout(policy, updates, settings)
    else:
        flow_grpo.after_rollout(policy)


def slices(groups: Tensor, step: int, setup: Setup) -> Iterator[Tensor]:
    """The rows (N,) of every optimiser step that a rollout feeds: the same share of every group, by identity."""
    for iteration in range(setup.mu_iterations):
        chunks: list[list[Tensor]] = [[] for _ in range(setup.updates_per_pass)]
        for group in groups.unique().tolist():
            members = (groups == group).nonzero().flatten()
            order = torch.randperm(len(members), generator=draw.generator(setup.seed, step, "slice", iteration, group))
            for chunk, rows in zip(chunks, members[order].tensor_split(setup.updates_per_pass), strict=True):
                chunk.append(rows)
        yield from (torch.cat(chunk).sort().values for chunk in chunks)


def slice_terms(
    job: Job, found: Collected, request: Request, rows: Tensor, advantages: Tensor, key: draw.Key, setup: Setup
) -> tuple[Iterable[Term], float]:
    """The terms of one optimiser step on this rank's part of ``rows``, and that part's share of them."""
    here = torch.isin(request.ids, rows)
    if found.rollout is None or not here.any():
        return (), 0.0
    part = found.rollout if here.all() else found.rollout[here.nonzero().flatten()]
    weights = advantages[part.ids].to(part.latents.device, part.latents.dtype)
    part, settings = replace(part, advantages=weights), setup.settings
    if isinstance(settings, nft.Settings):
        terms = nft.terms(job.policy, part, settings, key)
    else:
        terms = flow_grpo.terms(job.policy, part, settings, key)
    return terms, len(part.ids) / len(rows)


def mean_of(updates: list[dict[str, float]]) -> dict[str, float]:
    """Every metric averaged over the optimiser steps that report it; of ``skipped_steps``, a count, the last."""
    names = sorted(set().union(*updates))
    values = {name: [u[name] for u in updates if name in u] for name in names}
    return {name: v[-1] if name == "skipped_steps" else sum(v) / len(v) for name, v in values.items()}


def reward_metrics(scores: dict[str, Tensor], groups: Tensor) -> dict[str, float]:
    """Statistics of a step's rewards; ``scores`` holds the total (B,) under ``reward`` and its parts beside it."""
    s = group_statistics(scores["reward"], groups)
    parts = {f"reward/{name}": float(value.mean()) for name, value in scores.items() if name != "reward"}
    return parts | {
        "reward/mean": s.mean,
        "reward/max": s.max,
        "reward/min": s.min,
        "reward/range": s.range,
        "reward_std_mean": s.std_mean,
        "zero_std_ratio": s.zero_std_ratio,
        "group_size": s.group_size,
        "trained_prompt_num": float(s.num_groups),
    }


def picture_metrics(found: Collected, groups: Tensor, world: World) -> dict[str, float]:
    """``media/contrast`` and ``media/diversity`` of a step's samples, over all ranks."""
    thumbnails = gather_thumbnails(found, world, len(groups))
    return {f"media/{name}": value for name, value in picture_statistics(thumbnails, groups).items()}


def show(job: Job, found: Collected, request: Request, step: int, setup: Setup) -> None:
    """Write a sheet of the step's first group, and its clips, when they are due."""
    session = job.session
    if not setup.shows(step) or not session.world.main or found.scores is None:
        return
    totals = found.scores.total.tolist()
    rows = [(request.prompts[i], [(media, totals[i])]) for i, media in enumerate(found.shown)]
    path = session.folder.samples / f"rollout_{step:06d}.png"
    preview.sheet(rows, path, columns=8)
    session.picture(step, "rollout", path)
    clips = preview.films([prompt for prompt, _ in rows], found.shown, path.with_suffix(""), job.fps)
    session.clips(step, "rollout_clips", clips)
