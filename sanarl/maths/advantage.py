"""Group-relative advantages (GRPO, Shao et al., arXiv:2402.03300, section 4.1.2), and statistics of groups."""

from typing import NamedTuple

import torch
from torch import Tensor

EPS = 1e-4


def by_group(values: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and population deviation (N,) of every group in the order of its number, and each row's place (B,) there."""
    numbers, place = torch.unique(groups, return_inverse=True)
    count = torch.bincount(place, minlength=len(numbers)).to(values.dtype)
    mean = torch.zeros_like(count).index_add_(0, place, values) / count
    variance = torch.zeros_like(count).index_add_(0, place, (values - mean[place]) ** 2) / count
    return mean, variance.sqrt(), place


def group_advantages(rewards: Tensor, groups: Tensor, global_std: bool) -> Tensor:
    """Reward minus the mean of its group, over a standard deviation: (B,) -> (B,), in float64.

    Args:
        rewards: (B,).
        groups: (B,) int64, which group a row belongs to; groups may have different sizes.
        global_std: divide by the deviation of all rewards; otherwise by that of the row's own group. Both are
            population deviations, plus 1e-4.

    Raises:
        ValueError: when the two shapes differ.
    """
    if rewards.shape != groups.shape:
        raise ValueError(f"{tuple(rewards.shape)} rewards against {tuple(groups.shape)} group numbers")
    rewards = rewards.double()
    mean, std, place = by_group(rewards, groups)
    scale = rewards.std(correction=0) if global_std else std[place]
    return (rewards - mean[place]) / (scale + EPS)


class GroupStatistics(NamedTuple):
    """What a step's rewards look like, group by group."""

    mean: float
    max: float  # mean over groups of the group's maximum
    min: float  # mean over groups of the group's minimum
    range: float  # mean over groups of maximum - minimum
    std_mean: float  # mean over groups of the group's population deviation
    zero_std_ratio: float  # share of groups whose rewards are all equal: they teach nothing
    group_size: float  # mean number of samples of a group
    num_groups: int


def group_statistics(rewards: Tensor, groups: Tensor) -> GroupStatistics:
    """Statistics of rewards (B,) by ``groups`` (B,); a group counts as equal below a deviation of 1e-6."""
    rewards = rewards.double()
    _, std, place = by_group(rewards, groups)
    n = len(std)
    high = torch.full((n,), -torch.inf, dtype=rewards.dtype).scatter_reduce(0, place, rewards, "amax")
    low = torch.full((n,), torch.inf, dtype=rewards.dtype).scatter_reduce(0, place, rewards, "amin")
    return GroupStatistics(
        mean=float(rewards.mean()),
        max=float(high.mean()),
        min=float(low.mean()),
        range=float((high - low).mean()),
        std_mean=float(std.mean()),
        zero_std_ratio=float((std < 1e-6).double().mean()),
        group_size=len(rewards) / n,
        num_groups=n,
    )
