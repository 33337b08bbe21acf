"""Guards against reward hacking: a few fixed prompts, always from the same noise, beside what training started from.

A reward that is optimised rises in any case. Whether the pictures still live shows in what is not optimised: another
reward or the same on other prompts, how much the samples of a prompt differ, their edges, colours and sharpness, how
much clips move, and how far the model has gone.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from sanarl.maths import draw, pictures
from sanarl.maths.paired import t_interval
from sanarl.models.policy import Policy
from sanarl.rollout.collect import on_all_ranks, picture_statistics, thumbnail
from sanarl.rollout.evaluate import HeldOut
from sanarl.rollout.generate import generate
from sanarl.runtime.world import World
from sanarl.types import Cond, Rollout

SIGMAS = (0.75, 0.5, 0.25)
"""Noise levels that the drift is measured at."""


@dataclass(frozen=True)
class Limits:
    """What is still in order; names as in [guards]."""

    min_diversity: float
    max_change: float
    max_drift: float


@dataclass(frozen=True)
class Look:
    """What one look saw, the same on every rank."""

    scores: dict[str, Tensor]
    """``reward`` and every part of it, each (n,)."""
    groups: Tensor  # (n,) int64, number of the prompt
    diversity: float
    statistics: Tensor  # (n, K) of the first K of maths.pictures.NAMES
    drift: float

    @property
    def metrics(self) -> dict[str, float]:
        """``guards/<name>``."""
        found = {name: float(value.mean()) for name, value in self.scores.items()}
        found |= {"diversity": self.diversity, "drift": self.drift, **self.means}
        return {f"guards/{name}": value for name, value in found.items()}

    @property
    def means(self) -> dict[str, float]:
        """Mean of every statistic; ``motion`` of clips alone."""
        return dict(zip(pictures.NAMES, self.statistics.mean(0).tolist(), strict=False))

    def by_prompt(self, name: str) -> Tensor:
        """(P,) mean score of every prompt."""
        return torch.stack([self.scores[name][self.groups == group].mean() for group in self.groups.unique()])


@dataclass
class Watch:
    """What is watched, when, and what a breach does."""

    held_out: HeldOut
    every: int
    limits: Limits
    stop: bool
    start: Look | None = None
    """What the reference looks like; taken when it is first needed."""


def look(policy: Policy, values: AbstractContextManager[None], held_out: HeldOut, world: World) -> Look:
    """Sample the fixed prompts and take their measure; the work is spread over the ranks.

    Args:
        policy: with a reference, which drift is measured from.
        values: entered, puts in place what samples.
        held_out: prompts, sampling and rewards.
        world: the ranks.

    Raises:
        RewardError: when a reward fails, on every rank when it does on any.
    """
    n = len(held_out)
    seen = on_all_ranks(world, lambda: _seen(policy, values, held_out, world.rows(n)))
    with policy.reference():
        start = [_velocities(policy, part, held_out.key) for part in seen.parts]
    groups = torch.arange(n) // held_out.num_samples

    def gathered(rows: Tensor) -> Tensor:
        """Of all ranks; one without rows does not know how wide they are."""
        return world.gather(rows.reshape(-1, max(world.gather_objects(rows.shape[1]))), n)

    names = sorted(set().union(*world.gather_objects(sorted(seen.scores))))
    return Look(
        scores={name: world.gather(seen.scores.get(name, torch.zeros(0)).double(), n) for name in names},
        groups=groups,
        diversity=picture_statistics(gathered(seen.thumbnails), groups)["diversity"],
        statistics=gathered(seen.statistics),
        drift=float(world.gather(_distances(seen.velocities, start), n).mean()),
    )


@dataclass(frozen=True)
class _Seen:
    """What this rank's rows gave, on the CPU but for the samples and velocities of each mini-batch."""

    parts: list[Rollout]
    velocities: list[Tensor]
    thumbnails: Tensor  # (rows, N)
    statistics: Tensor  # (rows, K)
    scores: dict[str, Tensor]


def _seen(policy: Policy, values: AbstractContextManager[None], held_out: HeldOut, mine: range) -> _Seen:
    repeat, scoring = held_out.num_samples, held_out.scoring
    ids = torch.tensor(mine, dtype=torch.int64)
    thumbnails, statistics, parts = [torch.zeros(0, 0)], [torch.zeros(0, 0).double()], []
    with values:
        prompts = [held_out.prompts[i // repeat] for i in mine]
        for rows, part, media in generate(policy, prompts, ids, ids // repeat, held_out.sampler, held_out.key):
            if scoring is not None:
                metadata = [held_out.metadata[mine[row] // repeat] for row in rows.tolist()]
                scoring.submit(rows.tolist(), media, part.prompts, metadata, only_strict=False)
            thumbnails.append(thumbnail(media).cpu())
            statistics.append(pictures.statistics(media))
            parts.append(part)
        velocities = [_velocities(policy, part, held_out.key) for part in parts]
    scores = dict[str, Tensor]()
    if scoring is not None and parts:
        found = scoring.collect(held_out.deadline_s)
        scores = {name: part for name, part in found.parts.items() if name != "avg"}  # the total under another name
        scores["reward"] = found.total
    return _Seen(
        parts=parts,
        velocities=velocities,
        thumbnails=torch.cat(thumbnails[1:]) if parts else thumbnails[0],
        statistics=torch.cat(statistics[1:]) if parts else statistics[0],
        scores=scores,
    )


@torch.no_grad()
def _velocities(policy: Policy, part: Rollout, key: draw.Key) -> Tensor:
    """Velocities (sigmas, b, N) at the samples with noise on top, the same noise whichever values are in use."""
    x0 = part.latents
    noise = draw.normal(part.ids, tuple(x0.shape[1:]), *key, "drift").to(x0.device)
    cond: Cond = part.cond
    found = []
    for sigma in SIGMAS:
        x_t = (1 - sigma) * x0 + sigma * noise
        found.append(policy.velocity(x_t, torch.full((len(x0),), sigma, device=x0.device), cond).float().flatten(1))
    return torch.stack(found)


def _distances(now: list[Tensor], start: list[Tensor]) -> Tensor:
    """(rows,) float64: |v - v_start| / |v_start|, mean over noise levels."""
    each = [((a - b).norm(dim=2) / b.norm(dim=2)).mean(0).double().cpu() for a, b in zip(now, start, strict=True)]
    return torch.cat(each) if each else torch.zeros(0).double()


def breaches(found: Look, start: Look, limits: Limits) -> list[str]:
    """What is out of order, a line each, with the numbers and the key that sets the limit."""
    lines: list[str] = []
    for name in sorted(found.scores, key=lambda name: name == "reward"):
        if name == "reward" and lines:  # a part of it has been named
            continue
        change = t_interval((found.by_prompt(name) - start.by_prompt(name)).numpy())
        if change.high is not None and change.high < 0:
            label = "reward" if name == "reward" else f"reward {name}"
            lines.append(
                f"{label} on the fixed prompts fell by {-change.mean:.4g} (95 % interval over {change.n} prompts: "
                f"{-change.high:.4g} to {-change.low:.4g})"  # type: ignore[operator]  # both or neither
            )
    if start.diversity > 0 and found.diversity < limits.min_diversity * start.diversity:
        share = found.diversity / start.diversity
        lines.append(
            f"samples of a prompt differ by {found.diversity:.4g}, {share:.0%} of the {start.diversity:.4g} at the "
            f"start (guards.min_diversity = {limits.min_diversity:g})"
        )
    for name, was in start.means.items():
        now = found.means[name]
        if was > 0 and not was / limits.max_change <= now <= was * limits.max_change:
            lines.append(
                f"{name.replace('_', ' ')} is {now:.4g}, {now / was:.2g} times the {was:.4g} at the start "
                f"(guards.max_change = {limits.max_change:g})"
            )
    if found.drift > limits.max_drift:
        lines.append(
            f"velocities are {found.drift:.2f} of their size away from the start (guards.max_drift = "
            f"{limits.max_drift:g})"
        )
    return lines
