"""Call every reward once before a run starts, so that what cannot work is found before the first step."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sanarl.rewards.local import Scoring
from sanarl.rewards.mix import Mix, Scores
from sanarl.rewards.remote import RemoteScoring


@dataclass(frozen=True)
class Trial:
    """What is scored: media (B, F, 3, H, W) in [0, 1] with B prompts and metadata as the run will have them."""

    media: Tensor
    prompts: list[str]
    metadata: list[dict[str, Any]]
    only_strict: bool
    """As in training."""


def trial_media(size: tuple[int, int], frames: int, device: torch.device) -> Tensor:
    """(2, F, 3, H, W): a ramp from black to white and its mirror image. Draws nothing from any generator."""
    height, width = size
    ramp = torch.linspace(0, 1, width, device=device).expand(frames, 3, height, width)
    return torch.stack([ramp, ramp.flip(-1)])


def dry_call(scoring: Scoring | RemoteScoring, trial: Trial) -> list[str]:
    """One line a score: its shape and range, and the time that the reward took for what it was given.

    The rewards of a service are asked for together, so their time is that of the request.

    Raises:
        RewardError: A reward failed, or gave something that is not a score.
    """
    lines = []
    if isinstance(scoring, RemoteScoring):
        before = time.perf_counter()
        scores = scoring.trial(trial.media, trial.prompts, trial.metadata, trial.only_strict)
        return _lines(scores, scoring.labels, time.perf_counter() - before, f"{_given(trial)}, by a service")
    for name, (_, reward) in scoring.mix.parts.items():
        before = time.perf_counter()
        one = Mix({name: (1.0, reward)})
        scores = one(trial.media, list(trial.prompts), list(trial.metadata), only_strict=trial.only_strict)
        lines += _lines(scores, [name], time.perf_counter() - before, _given(trial))
    return lines


def _given(trial: Trial) -> str:
    return f"for media {tuple(trial.media.shape)}"


def _lines(scores: Scores, timed: list[str], seconds: float, given: str) -> list[str]:
    lines = []
    for label, values in scores.parts.items():
        found = f"{tuple(values.shape)}, {values.min():.4g} to {values.max():.4g}"
        took = f", {seconds:.2f} s {given}" if label in timed else ""
        lines.append(f"reward {label}: {found}{took}")
    return lines
