"""Call every reward once before a run starts, so that what cannot work is found before the first step."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sanarl.rewards.mix import Mix


def trial_media(size: tuple[int, int], frames: int, device: torch.device) -> Tensor:
    """(2, F, 3, H, W): a ramp from black to white and its mirror image. Draws nothing from any generator."""
    height, width = size
    ramp = torch.linspace(0, 1, width, device=device).expand(frames, 3, height, width)
    return torch.stack([ramp, ramp.flip(-1)])


def dry_call(mix: Mix, media: Tensor, prompts: Sequence[str], metadata: Sequence[dict[str, Any]]) -> list[str]:
    """One line a reward: the shape of its scores and of what it was given, their range, the time it took.

    Args:
        mix: The rewards.
        media: (B, F, 3, H, W) in [0, 1].
        prompts: B prompts, as training will have them.
        metadata: B dicts, as training will have them.

    Raises:
        RewardError: A reward failed, or gave something that is not a score.
    """
    lines = []
    for name, (_, reward) in mix.parts.items():
        before = time.perf_counter()
        scores = Mix({name: (1.0, reward)})(media, list(prompts), list(metadata))
        seconds = time.perf_counter() - before
        for label, values in scores.parts.items():
            found = f"{tuple(values.shape)}, {values.min():.4g} to {values.max():.4g}"
            took = f", {seconds:.2f} s for media {tuple(media.shape)}" if label == name else ""
            lines.append(f"reward {label}: {found}{took}")
    return lines
