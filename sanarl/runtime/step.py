"""One optimiser step, for every algorithm."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import nn

from sanarl.errors import UserError
from sanarl.runtime.world import World
from sanarl.shards import is_part, whole
from sanarl.types import Term, Trainable


class NotFinite(UserError):
    """Too many steps in a row had a loss or gradient that is not finite."""


@dataclass
class StepGuard:
    """Counts skipped steps and stops the run after ``limit`` in a row."""

    limit: int
    in_a_row: int = 0
    total: int = 0
    culprit: str = field(default="", init=False)
    """What was not finite in the last step that was left out."""

    def passed(self) -> None:
        """A step was taken."""
        self.in_a_row = 0

    def skipped(self, step: int, culprit: str) -> None:
        """A step was left out.

        Raises:
            NotFinite: when it was the last one allowed in a row.
        """
        self.in_a_row, self.total, self.culprit = self.in_a_row + 1, self.total + 1, culprit
        if self.in_a_row >= self.limit:
            raise NotFinite(
                f"step {step}: {culprit} is not finite, and {self.in_a_row} optimiser steps in a row were left out for "
                f"that reason (train.max_skipped_steps = {self.limit}). Lower train.optm_lr, or compute in float32 "
                f"(train.param_dtype); the last checkpoint holds finite weights"
            )

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint keeps."""
        return {"in_a_row": self.in_a_row, "total": self.total}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take over what a checkpoint kept."""
        self.in_a_row, self.total = state["in_a_row"], state["total"]


def optimise(
    terms: Iterable[Term],
    policy: Trainable,
    optimizer: torch.optim.Optimizer,
    *,
    grad_clip: float,
    share: float,
    world: World,
    guard: StepGuard,
    step: int,
) -> dict[str, float] | None:
    """Back up every term, sum over ranks, check, clip once, step once.

    The gradients of weights that ranks share are summed in every term's backward pass: all ranks give as many terms.

    Args:
        terms: this rank's terms; their weights sum to 1 (there may be none when ``share`` is 0).
        policy: whose working weights carry the gradients and whose masters are stepped.
        optimizer: over ``policy.masters``.
        grad_clip: largest norm of the gradient; 0 or less does not clip.
        share: this rank's share of the global batch; the shares of all ranks sum to 1.
        world: the ranks.
        guard: told whether the step was taken.
        step: for messages.

    Returns:
        The weighted mean of every metric and the largest value of every peak over all terms and ranks, and grad_norm;
        None when the step was skipped because a loss or the gradient was not finite.

    Raises:
        NotFinite: after ``guard.limit`` skipped steps in a row.
    """
    optimizer.zero_grad(set_to_none=True)
    sums = back_up(terms, policy, share)
    for master in policy.masters:
        if master.grad is None:
            master.grad = torch.zeros_like(master)
    world.sum_all([m.grad for m in policy.masters if m.grad is not None and not is_part(m.grad)])
    means = _reduce(sums.totals, world) | _largest(sums.peaks, world)
    norm = _clip(policy.masters, grad_clip, world)
    bad_term = _bad_term(sums.worst, world)
    if bad_term is not None or not torch.isfinite(norm):
        guard.skipped(step, f"the loss of term {bad_term}" if bad_term is not None else "the gradient's norm")
        return None
    optimizer.step()
    policy.publish()
    policy.learner_moved()
    guard.passed()
    return means | {"grad_norm": float(norm)}


@dataclass
class Sums:
    """What the terms of a step leave behind besides gradients, on the device."""

    totals: dict[str, torch.Tensor] = field(default_factory=dict)
    """Of every metric, weighted."""
    peaks: dict[str, torch.Tensor] = field(default_factory=dict)
    worst: torch.Tensor | None = None
    """See ``_first_bad``."""


def back_up(terms: Iterable[Term], policy: Trainable, share: float) -> Sums:
    """Back up every term as it comes: the inner loop, in which the host never waits for the device."""
    sums, weight = Sums(), 0.0
    for number, term in enumerate(terms):
        (term.loss * (term.weight * share)).backward()
        policy.collect_gradients()
        weight += term.weight
        for name, value in {"loss": term.loss.detach(), **term.metrics}.items():
            added = value.double() * (term.weight * share)
            sums.totals[name] = sums.totals[name] + added if name in sums.totals else added
        for name, value in term.peaks.items():
            sums.peaks[name] = torch.maximum(sums.peaks[name], value) if name in sums.peaks else value
        sums.worst = _first_bad(term.loss.detach(), number, sums.worst)
    assert abs(weight - (share > 0)) < 1e-6, f"the weights of a step's terms sum to {weight}, not 1"
    return sums


def _clip(masters: list[nn.Parameter], grad_clip: float, world: World) -> torch.Tensor:
    """Scale the gradient down to the norm ``grad_clip``, if that is above 0, and return its norm before."""
    norm = nn.utils.get_total_norm([m.grad for m in masters if m.grad is not None])
    norm = whole(norm.to(world.device)).to(masters[0].device)  # parts may lie in host memory; ranks meet on the device
    if grad_clip > 0:
        nn.utils.clip_grads_with_norm_(masters, grad_clip, norm)
    return norm


def _first_bad(loss: torch.Tensor, number: int, worst: torch.Tensor | None) -> torch.Tensor:
    """Number of the first term whose loss is not finite, kept on the device so that no step waits for it; inf: none."""
    bad = torch.where(torch.isfinite(loss), torch.inf, float(number)).double()
    return bad if worst is None else torch.minimum(worst, bad)


def _bad_term(worst: torch.Tensor | None, world: World) -> int | None:
    """The first bad term of any rank, the same answer on all of them."""
    mine = float("inf") if worst is None else float(worst)
    table = torch.full((world.size,), 0.0, dtype=torch.float64, device=world.device)
    table[world.rank] = mine if mine != float("inf") else -1.0
    bad = [n for n in world.sum(table).tolist() if n >= 0]
    return int(min(bad)) if bad else None


def _reduce(totals: dict[str, torch.Tensor], world: World) -> dict[str, float]:
    """Sum every metric over ranks; a rank without rows learns the names from the others."""
    names = sorted(totals)
    if world.size > 1:
        names = sorted(set().union(*world.gather_objects(names)))
    zero = torch.zeros((), dtype=torch.float64, device=world.device)
    if not names:
        return {}
    values = world.sum(torch.stack([totals.get(name, zero).to(world.device) for name in names]))
    return dict(zip(names, values.tolist(), strict=True))


def _largest(peaks: dict[str, torch.Tensor], world: World) -> dict[str, float]:
    """The largest value of every peak over ranks, the same on all of them."""
    mine = {name: float(value) for name, value in peaks.items()}
    found = world.gather_objects(mine)
    return {name: max(part[name] for part in found if name in part) for name in sorted(set().union(*found))}
