"""Samples with their scores: media go to the rewards as they appear, while sampling goes on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sanarl.maths import draw
from sanarl.models.base import Source
from sanarl.rewards.local import Scoring
from sanarl.rewards.mix import RewardError, Scores
from sanarl.rollout.generate import Sampler, generate
from sanarl.runtime.world import World
from sanarl.types import Rollout

T = TypeVar("T")
THUMBNAIL = 8


@dataclass(frozen=True)
class Request:
    """What to sample: B prompts with their metadata, identities and groups, this rank's rows."""

    prompts: list[str]
    metadata: list[dict[str, Any]]
    ids: Tensor  # (B,) int64
    groups: Tensor  # (B,) int64
    first: Tensor | None = None  # (B, 1, 3, H, W) the frames that clips start from, of image-to-video


@dataclass(frozen=True)
class Collected:
    """What came of it, in the order of the request."""

    rollout: Rollout | None  # None when the request was empty, or samples were not kept
    scores: Scores | None  # None without rewards
    shown: Tensor  # (K, F, 3, H, W) media of the rows asked for, on the CPU
    thumbnails: Tensor  # (B, N) colours of the media shrunk to 8 x 8, on the CPU


def collect(
    source: Source,
    request: Request,
    sampler: Sampler,
    key: draw.Key,
    scoring: Scoring | None,
    deadline_s: float,
    shown_rows: range,
    only_strict: bool = True,
    keep: bool = True,
) -> Collected:
    """Sample every row of ``request`` and score it.

    Args:
        source: a policy under the values that shall sample, or a copy that has them.
        request: what to sample.
        sampler: how.
        key: what these samples are for; starting noise depends on it and the row's id.
        scoring: where media go; None scores nothing.
        deadline_s: seconds that scoring may take after the last sample is there.
        shown_rows: whose media are kept for people to look at.
        only_strict: the scores are for training, not for people to read; see ``Mix``.
        keep: also the samples; otherwise only what their media showed.

    Raises:
        RewardError: when a scorer fails or is late.
    """
    parts: list[Rollout] = []
    shown: list[Tensor] = []
    thumbnails = [torch.zeros(0, 0)]
    asked = request.prompts, request.ids, request.groups
    for rows, part, media in generate(source, *asked, sampler, key, request.first):
        listed = rows.tolist()
        if scoring is not None:
            scoring.submit(listed, media, part.prompts, [request.metadata[i] for i in listed], only_strict)
        parts += [part] if keep else []
        shown.append(media[[place for place, row in enumerate(listed) if row in shown_rows]].cpu())
        thumbnails.append(thumbnail(media).cpu())
    scores = scoring.collect(deadline_s) if scoring is not None and shown else None
    return Collected(
        rollout=Rollout.cat(parts) if parts else None,
        scores=scores,
        shown=torch.cat(shown) if shown else torch.zeros(0),
        thumbnails=torch.cat(thumbnails[1:]) if shown else thumbnails[0],
    )


def on_all_ranks(world: World, work: Callable[[], T]) -> T:
    """What ``work`` collects here, unless a reward fails on any rank: then every rank fails, with the same exit code.

    Raises:
        RewardError: on every rank; those where nothing failed say what did on another, for which nobody may listen.
    """
    found, failure = None, None
    try:
        found = work()
    except RewardError as error:
        failure = error
    told = world.gather_objects(None if failure is None else (failure.exit_code, str(failure)))
    failed = [(rank, *each) for rank, each in enumerate(told) if each is not None]
    if failed:
        rank, _, text = failed[0]
        failure = failure or RewardError(f"rank {rank}: {text}")
        failure.exit_code = max(code for _, code, _ in failed)
        raise failure
    assert found is not None, "no failure"
    return found


def thumbnail(media: Tensor) -> Tensor:
    """Media (B, F, 3, H, W) -> (B, k * 3 * 8 * 8): shrunk, for statistics of how samples differ.

    k = 1 frame of a picture; the first, middle and last of a clip, so that clips which part later differ.
    """
    last = media.shape[1] - 1
    chosen = media[:, sorted({0, last // 2, last})]  # (B, k, 3, H, W)
    return F.adaptive_avg_pool2d(chosen.flatten(0, 1), THUMBNAIL).reshape(len(media), -1)


def picture_statistics(thumbnails: Tensor, groups: Tensor) -> dict[str, float]:
    """How rich pictures are and how much they differ, from ``thumbnails`` (B, N) and group numbers (B,).

    ``contrast``: mean over pictures of the deviation of their colours; near 0 for blank ones.
    ``diversity``: mean over groups of two and more of the colours' deviation across the group; near 0 when all
    samples of a prompt look the same. Without such groups, across all pictures.
    """
    pictures = thumbnails.double()
    contrast = float(pictures.std(1, correction=0).mean())
    numbers, counts = groups.unique(return_counts=True)
    members = [pictures[groups == n] for n, c in zip(numbers, counts, strict=True) if c > 1] or [pictures]
    diversity = float(torch.stack([m.std(0, correction=0).mean() for m in members]).mean())
    return {"contrast": contrast, "diversity": diversity}
