"""Reinforcement learning on groups of samples.

config -> data -> policy -> rollout -> reward -> advantage -> loss terms -> optimiser -> checkpoint

Rows go to ranks evenly; rewards are gathered, so that every rank computes all advantages.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from sanarl.algorithms import awm, flow_grpo, forward, nft
from sanarl.data.loading import Loader
from sanarl.maths import draw as noise
from sanarl.maths.advantage import group_advantages, group_statistics
from sanarl.models.policy import Policy
from sanarl.rewards.local import Scoring
from sanarl.rewards.remote import RemoteScoring
from sanarl.rollout import preview
from sanarl.rollout.collect import Collected, picture_statistics
from sanarl.rollout.evaluate import gather_thumbnails
from sanarl.rollout.generate import Sampler
from sanarl.runtime.world import World
from sanarl.training.job import Job
from sanarl.training.stages import Asked, Draw, Pool, Samples, draw, kept
from sanarl.types import Rollout, Term

Algorithm = nft.Settings | awm.Settings | flow_grpo.Settings
"""The numbers of an algorithm, which also say which one it is."""


@dataclass(frozen=True)
class Setup:
    """What a run of reinforcement learning is told."""

    prompts_per_step: int
    pool: Pool
    updates_per_pass: int
    """Optimiser steps that one pass over a rollout feeds."""
    mu_iterations: int
    global_std: bool
    sampler: Sampler
    settings: Algorithm
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
    with ThreadPoolExecutor(1, thread_name_prefix="sheet") as artist:
        for step in session.steps(job.export):
            with session.timed("step"):
                asked = ask(loader, step, setup)  # data
                with session.timed("rollout"):  # policy -> rollout -> reward
                    drawn, previewed = sample(job, asked, scoring, step, setup)
                sheet = artist.submit(paint, job, drawn, step) if setup.shows(step) else None
                batch = kept(drawn, asked, setup.pool, policy.model, world, (setup.seed, step))
                session.rewards(step, "train", asked.prompts, batch.groups, batch.scores)
                advantages = group_advantages(batch.scores["reward"], batch.groups, setup.global_std)  # advantage
                with session.timed("train"):
                    updates = update(job, batch, advantages, step, setup)  # loss terms -> optimiser
                    after_rollout(policy, session.progress.updates, setup.settings)
                metrics = mean_of(updates) | reward_metrics(batch.scores, batch.groups) | previewed
                metrics |= pool_metrics(drawn, batch) | picture_metrics(drawn.found, drawn.groups, world)
                show(job, sheet, step)
                say(job, metrics, step)
                del drawn, batch  # what follows needs their memory
                metrics = job.conclude(step, metrics)
            session.log(step, metrics)
    return session.signals.exit_code


def ask(loader: Loader, step: int, setup: Setup) -> Asked:
    """The candidates of a step."""
    prompts = setup.prompts_per_step
    return Asked(loader.take((step - 1) * prompts, range(prompts)), setup.pool.candidates)


def sample(
    job: Job, asked: Asked, scoring: Scoring | RemoteScoring, step: int, setup: Setup
) -> tuple[Samples, dict[str, float]]:
    """Full samples of the old policy with their scores, and metrics of their previews; see ``stages.draw``."""
    how = Draw(scoring, setup.deadline_s, setup.seed, step)
    return draw(job, asked, how, setup.pool, setup.sampler, setup.pool.train if setup.shows(step) else 0)


def say(job: Job, metrics: dict[str, float], step: int) -> None:
    """Tell a person of steps that teach nothing, and of code that was compiled again."""
    console = job.session.console
    if metrics["zero_std_ratio"] == 1:
        console.line(f"step {step}: the rewards of every group are all equal; such a step teaches nothing")
    if step > 1 and metrics.get("rollout/recompiled"):
        console.line(f"step {step}: the rollout engine compiled {metrics['rollout/recompiled']:.0f} graph(s) again")


def update(job: Job, batch: Samples, advantages: Tensor, step: int, setup: Setup) -> list[dict[str, float]]:
    """Every optimiser step that a rollout feeds, each with its metrics."""
    done: list[dict[str, float]] = []
    for number, rows in enumerate(slices(batch.groups, step, setup)):
        terms = slice_terms(job, batch, rows, advantages, (setup.seed, step, number), setup)
        done.append(job.update(*terms, step))
        if isinstance(setup.settings, flow_grpo.Settings) and flow_grpo.RATIO_ERROR in done[-1]:
            batch = replace(batch, found=checked(batch.found, done[-1], setup.settings))
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


def after_rollout(policy: Policy, updates: int, settings: Algorithm) -> None:
    """Let the old values, which sample the next rollout, follow the learner's."""
    match settings:
        case forward.Settings():
            forward.after_rollout(policy, updates, settings)
        case flow_grpo.Settings():
            flow_grpo.after_rollout(policy)


def slices(groups: Tensor, step: int, setup: Setup) -> Iterator[Tensor]:
    """The rows (N,) of every optimiser step that a rollout feeds: the same share of every group, by identity."""
    for iteration in range(setup.mu_iterations):
        chunks: list[list[Tensor]] = [[] for _ in range(setup.updates_per_pass)]
        for group in groups.unique().tolist():
            members = (groups == group).nonzero().flatten()
            order = torch.randperm(len(members), generator=noise.generator(setup.seed, step, "slice", iteration, group))
            for chunk, rows in zip(chunks, members[order].tensor_split(setup.updates_per_pass), strict=True):
                chunk.append(rows)
        yield from (torch.cat(chunk).sort().values for chunk in chunks)


def slice_terms(
    job: Job, batch: Samples, rows: Tensor, advantages: Tensor, key: noise.Key, setup: Setup
) -> tuple[Iterable[Term], float]:
    """The terms of one optimiser step on this rank's part of ``rows``, and that part's share of them."""
    rollout, mine = batch.found.rollout, batch.request.ids
    here = torch.isin(mine, batch.ids[rows])
    if rollout is None or not here.any():
        return (), 0.0
    part = rollout if here.all() else rollout[here.nonzero().flatten()]
    weights = advantages[torch.searchsorted(batch.ids, part.ids)].to(part.latents.device, part.latents.dtype)
    return terms_of(job.policy, replace(part, advantages=weights), setup.settings, key), len(part.ids) / len(rows)


def terms_of(policy: Policy, part: Rollout, settings: Algorithm, key: noise.Key) -> Iterator[Term]:
    """The terms of whichever algorithm it is."""
    match settings:
        case nft.Settings():
            return nft.terms(policy, part, settings, key)
        case awm.Settings():
            return awm.terms(policy, part, settings, key)
        case flow_grpo.Settings():
            return flow_grpo.terms(policy, part, settings, key)


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


def pool_metrics(drawn: Samples, batch: Samples) -> dict[str, float]:
    """Rewards of all that was drawn in full, where only some of it trains."""
    if len(drawn.ids) == len(batch.ids):
        return {}
    s = group_statistics(drawn.scores["reward"], drawn.groups)
    return {"pool/reward_mean": s.mean, "pool/reward_max": s.max, "pool/reward_min": s.min, "pool/size": s.group_size}


def paint(job: Job, drawn: Samples, step: int) -> tuple[Path, list[Path]] | None:
    """Write a sheet of the step's first group, and its clips, while training goes on; only the main rank does."""
    session, found = job.session, drawn.found
    if not session.world.main or found.scores is None:
        return None
    totals = found.scores.total.tolist()
    rows = [(drawn.request.prompts[i], [(media, totals[i])]) for i, media in enumerate(found.shown)]
    path = session.folder.samples / f"rollout_{step:06d}.png"
    preview.sheet(rows, path, columns=8)
    return path, preview.films([prompt for prompt, _ in rows], found.shown, path.with_suffix(""), job.fps)


def show(job: Job, sheet: Future[tuple[Path, list[Path]] | None] | None, step: int) -> None:
    """Hand what was painted of a step to the trackers, which want it before the step's numbers."""
    if sheet is None or (painted := sheet.result()) is None:
        return
    path, clips = painted
    job.session.picture(step, "rollout", path)
    job.session.clips(step, "rollout_clips", clips)
