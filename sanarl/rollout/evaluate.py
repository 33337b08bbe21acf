"""Held-out evaluation: the same prompts from the same noise every time."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sanarl.maths import draw
from sanarl.models.policy import Policy
from sanarl.rewards.local import Scoring
from sanarl.rollout.collect import Collected, Request, collect, on_all_ranks, picture_statistics
from sanarl.rollout.generate import Sampler
from sanarl.runtime.world import World


@dataclass(frozen=True)
class HeldOut:
    """What is evaluated, and how."""

    prompts: list[str]
    metadata: list[dict[str, Any]]
    num_samples: int
    """Samples of a prompt."""
    sampler: Sampler
    key: draw.Key
    scoring: Scoring | None
    deadline_s: float
    first: Tensor | None = None
    """(number of prompts, 1, 3, H, W): the frames that clips start from, of image-to-video."""
    num_shown: int = 32

    def __len__(self) -> int:
        return len(self.prompts) * self.num_samples


@dataclass(frozen=True)
class Evaluated:
    """Numbers of an evaluation, its scores, and what some of its samples look like (of this rank's)."""

    metrics: dict[str, float]
    shown: Tensor  # (K, F, 3, H, W)
    prompts: list[str]  # K
    rewards: list[float] | None  # K
    scores: dict[str, Tensor]  # the total under "reward" and every part beside it, each (n,); empty without rewards
    groups: Tensor  # (n,) int64, number of the prompt


def evaluate(policy: Policy, held_out: HeldOut, world: World) -> Evaluated:
    """Sample and score every held-out prompt under the values in use; the work is spread over the ranks.

    Returns:
        ``eval/reward``, ``eval/<scorer>`` for every part of it, ``eval/contrast`` and ``eval/diversity``.

    Raises:
        RewardError: when a reward fails, on every rank when it does on any.
    """
    n, repeat = len(held_out), held_out.num_samples
    mine = world.rows(n)
    request = Request(
        prompts=[held_out.prompts[i // repeat] for i in mine],
        metadata=[held_out.metadata[i // repeat] for i in mine],
        ids=torch.tensor(mine, dtype=torch.int64),
        groups=torch.tensor([i // repeat for i in mine], dtype=torch.int64),
        first=None if held_out.first is None else held_out.first[[i // repeat for i in mine]],
    )
    shown_rows = range(0, len(mine), max(len(mine) // held_out.num_shown, 1))  # evenly spread

    def work() -> Collected:
        sampler, scoring, deadline_s = held_out.sampler, held_out.scoring, held_out.deadline_s
        return collect(policy, request, sampler, held_out.key, scoring, deadline_s, shown_rows, only_strict=False)

    found = on_all_ranks(world, work)
    groups = torch.arange(n) // repeat
    thumbnails = gather_thumbnails(found, world, n)
    metrics = {f"eval/{name}": value for name, value in picture_statistics(thumbnails, groups).items()}
    rewards, scores = None, dict[str, Tensor]()
    if held_out.scoring is not None:
        scores = gather_scores(found, world, n)
        metrics |= {f"eval/{name}": float(value.mean()) for name, value in scores.items()}
        rewards = found.scores.total[list(shown_rows)].tolist() if found.scores is not None else None
    return Evaluated(metrics, found.shown, [request.prompts[row] for row in shown_rows], rewards, scores, groups)


def gather_thumbnails(found: Collected, world: World, n: int) -> Tensor:
    """Every rank's thumbnails, (n, N); a rank without rows learns their width from the others."""
    width = max(world.gather_objects(found.thumbnails.shape[1]))
    return world.gather(found.thumbnails.reshape(-1, width), n)


def gather_scores(found: Collected, world: World, n: int) -> dict[str, Tensor]:
    """The total under ``reward`` and every part under its scorer's name, each (n,) float64, the same on every rank."""
    mine = {} if found.scores is None else {"reward": found.scores.total, **found.scores.parts}
    names = sorted(set().union(*world.gather_objects(sorted(mine))))
    return {name: world.gather(mine.get(name, torch.zeros(0)).double(), n) for name in names}
