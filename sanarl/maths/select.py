"""Which samples of a group are kept, by their rewards.

Rules and their names are those of Sol-RL: exploring many candidates cheaply and training on the telling ones pays
because the gradient of a group comes from its extremes.
"""

from collections.abc import Callable, Iterable
from typing import Literal, get_args

import torch
from torch import Tensor

from sanarl.maths import draw

Mode = Literal["best_worst", "random", "mean_deviation", "extremes_random"]
MODES: tuple[Mode, ...] = get_args(Mode)


def select(rewards: Tensor, groups: Tensor, keep: int, of: int, mode: Mode, *key: int | str) -> Tensor:
    """The rows that are kept, ``keep`` in ``of`` of every group and no row twice.

    A row's identity is its place in ``rewards``: equal rewards are told apart by it, and what is random is drawn from
    ``key`` and the group's number, so that every rank and every resumed run keeps the same rows.

    Args:
        rewards: (B,) finite. groups: (B,) int64, the group of every row.
        keep: rows kept of every ``of``: a group of twice as many, whose prompt stood twice in a step, keeps twice.
        of: rows that a prompt has.
        mode: ``best_worst`` the highest half, rounded down, and the rest from the lowest; ``random``;
            ``mean_deviation`` the farthest from the group's mean; ``extremes_random`` the highest, the lowest, and
            others at random.
        key: what is drawn for, for example (seed, step, "preview").

    Returns:
        (N,) int64 on the CPU, ascending.

    Raises:
        ValueError: when not 1 <= keep <= of, or a reward is not finite.
    """
    rewards, groups = rewards.detach().double().cpu(), groups.cpu()
    if not 1 <= keep <= of:
        raise ValueError(f"{keep} rows of {of} cannot be kept")
    if not bool(rewards.isfinite().all()):
        raise ValueError("a reward is not finite")
    chosen = [torch.zeros(0, dtype=torch.int64)]
    for group in torch.unique(groups).tolist():
        rows = (groups == group).nonzero().flatten()
        order = _PREFERENCE[mode](rewards[rows], len(rows) * keep // of, (*key, group))
        chosen.append(rows[order])
    return torch.cat(chosen).sort().values


def _best_worst(rewards: Tensor, keep: int, _: draw.Key) -> Tensor:
    """One descending order has no row in two places, however many rewards are equal."""
    descending = rewards.argsort(descending=True, stable=True)
    best = keep // 2
    return torch.cat([descending[:best], descending[len(rewards) - (keep - best) :]])


def _random(rewards: Tensor, keep: int, key: draw.Key) -> Tensor:
    return torch.randperm(len(rewards), generator=draw.generator(*key))[:keep]


def _mean_deviation(rewards: Tensor, keep: int, _: draw.Key) -> Tensor:
    return (rewards - rewards.mean()).abs().argsort(descending=True, stable=True)[:keep]


def _extremes_random(rewards: Tensor, keep: int, key: draw.Key) -> Tensor:
    descending = rewards.argsort(descending=True, stable=True)
    extremes = descending[[0, -1]][: min(keep, len(rewards))]
    others = descending[1:-1].sort().values
    return torch.cat([extremes, others[_random(others, keep - len(extremes), key)]])


_PREFERENCE: dict[Mode, Callable[[Tensor, int, draw.Key], Tensor]] = {
    "best_worst": _best_worst,
    "random": _random,
    "mean_deviation": _mean_deviation,
    "extremes_random": _extremes_random,
}


def spearman(a: Tensor, b: Tensor, groups: Tensor) -> float:
    """Mean over groups of Spearman's rank correlation of ``a`` and ``b`` (both (B,)), ties at their mean rank.

    Groups without spread in either are left out; NaN when none is left.
    """
    return _mean(_pearson(_ranks(a[rows]), _ranks(b[rows])) for rows in _members(groups))


def kendall(a: Tensor, b: Tensor, groups: Tensor) -> float:
    """Mean over groups of Kendall's tau-b of ``a`` and ``b`` (both (B,)); groups without spread are left out."""
    values = []
    for rows in _members(groups):
        first, second = (torch.sign(x[rows, None].double() - x[None, rows].double()) for x in (a, b))
        norm = (first.square().sum() * second.square().sum()).sqrt()
        values.append(float((first * second).sum() / norm) if norm > 0 else float("nan"))
    return _mean(values)


def top_overlap(a: Tensor, b: Tensor, groups: Tensor, k: int) -> float:
    """Mean over groups of the share of the ``k`` rows highest in ``a`` that are among the ``k`` highest in ``b``.

    ``k`` is at most the group's size less one: of a whole group everything overlaps. Groups of one are left out.
    """
    values = []
    for rows in _members(groups):
        count = min(k, len(rows) - 1)
        if count < 1:
            continue
        first, second = (x[rows].argsort(descending=True, stable=True)[:count] for x in (a, b))
        values.append(float(torch.isin(first, second).double().mean()))
    return _mean(values)


def _members(groups: Tensor) -> list[Tensor]:
    return [(groups == group).nonzero().flatten() for group in torch.unique(groups)]


def _ranks(values: Tensor) -> Tensor:
    """Ranks from 0, equal values at the mean of their ranks."""
    _, inverse = torch.unique(values, return_inverse=True)
    counts = torch.bincount(inverse).double()
    ranks: Tensor = counts.cumsum(0) - (counts + 1) / 2
    return ranks[inverse]


def _pearson(a: Tensor, b: Tensor) -> float:
    a, b = a - a.mean(), b - b.mean()
    norm = float(a.norm() * b.norm())
    return float(a @ b) / norm if norm > 0 else float("nan")


def _mean(values: Iterable[float]) -> float:
    kept = [v for v in values if v == v]
    return sum(kept) / len(kept) if kept else float("nan")
