"""policy.memory_plan: how the backward pass and mini-batches use the memory of the card."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from sanarl.config import Config
from sanarl.models.checkpointing import Checkpointing, as_written, set_checkpointing
from sanarl.models.policy import Policy
from sanarl.runtime import memory
from sanarl.runtime.session import size
from sanarl.runtime.world import World
from sanarl.training.memory.footprints import Footprint
from sanarl.training.memory.prediction import Prediction

ALLOCATOR = 1.08
"""Memory that torch's allocator asks the card for, over what tensors take at the peak: it cannot reuse every gap."""
FILLED = 1024
"""Tokens at which a pass through the blocks runs at half of its best speed."""
CAPTIONS = 0.05
"""Share of a pass that rows of one prompt do once (train.fuse), and rows of several do not."""
WORTH = 0.02
"""A plan that takes more memory must be faster by this share."""
SIZES = (1, 2, 3, 4, 6, 8, 9, 12, 16, 20, 24, 32, 48, 64)
WAYS: tuple[Checkpointing, ...] = ("full", "selective", "off")
AGAIN: dict[Checkpointing, float] = {"off": 0.0, "selective": 0.5, "full": 1.0}
"""Forward passes that the backward pass repeats."""


@dataclass(frozen=True)
class MemoryPlan:
    """What is trained at once, and which activations are kept; the same on every rank."""

    kind: Literal["as_written", "auto"]
    checkpointing: Checkpointing
    mini_batch: int
    prediction: Prediction | None = None
    budget: int | None = None
    """Bytes of the card that this process may have; on several ranks the fewest."""

    @property
    def verdict(self) -> str:
        """Whether the prediction, with what the allocator needs, is within the budget."""
        if self.prediction is None or self.budget is None or ALLOCATOR * self.prediction.peak <= self.budget:
            return ""
        if ALLOCATOR * self.prediction.firm_peak <= self.budget:
            return ": the autoencoder will take fewer samples at once"
        return ": NOT ENOUGH, with what the allocator needs"

    def line(self) -> str:
        """For people."""
        said = f"memory plan ({self.kind}): checkpointing {self.checkpointing}, mini_batch {self.mini_batch}"
        if self.prediction is None:
            return said
        there = "" if self.budget is None else f" of {size(self.budget)}"
        return f"{said}; predicted peak {size(self.prediction.peak)}{there}, in {self.prediction.worst}{self.verdict}"

    def record(self) -> dict[str, object]:
        """For a run's memory.json."""
        told = {"memory_plan": self.kind, "checkpointing": self.checkpointing, "mini_batch": self.mini_batch}
        return told | {"budget": self.budget, "predicted": self.prediction and self.prediction.record()}

    def write(self, file: Path) -> None:
        """Put the record into a file."""
        file.write_text(json.dumps(self.record(), indent=1) + "\n", encoding="utf-8")


def written(config: Config) -> MemoryPlan:
    """What the configuration says."""
    mini_batch = config.grpo.mini_batch if config.is_rl else config.sft.mini_batch
    return MemoryPlan("as_written", as_written(config.policy.model_gradient_checkpointing), mini_batch)


def made(config: Config, footprint: Footprint, policy: Policy, world: World) -> MemoryPlan:
    """The plan that ``policy.memory_plan`` asks for, put into force; the same on every rank."""
    found = written(config)
    if config.policy.memory_plan == "auto":
        found = chosen(config, footprint, memory.shared_budget(world))
    set_checkpointing(policy.model.transformer, found.checkpointing)
    return found


def chosen(config: Config, footprint: Footprint, budget: int | None) -> MemoryPlan:
    """The plan for so much memory; equal budgets give equal plans.

    A choice is made by two numbers of each candidate: the memory that the prediction gives it, and the passes that a
    sample costs at the speed of so many tokens at once.
    """
    held = sum(footprint.predict(config, "full", 1).held.values())
    room = None if budget is None else budget / ALLOCATOR - held
    rows = footprint.rows(config)
    best: tuple[Checkpointing, int] = ("full", 1)
    best_cost = _cost(footprint, config, *best)
    for how in WAYS:
        one, two = (footprint.training(config, how, n) for n in (1, 2))
        for mini_batch in candidates(rows):
            cost = _cost(footprint, config, how, mini_batch)
            fits = room is None or one + (two - one) * (mini_batch - 1) <= room
            if fits and cost < best_cost * (1 - WORTH):
                best, best_cost = (how, mini_batch), cost
    how, mini_batch = best
    return MemoryPlan("auto", how, mini_batch, footprint.predict(config, how, mini_batch), budget)


def predicted(plan: MemoryPlan, config: Config, footprint: Footprint, budget: int | None) -> MemoryPlan:
    """The same plan with its prediction."""
    if plan.prediction is not None:
        return plan
    return replace(plan, prediction=footprint.predict(config, plan.checkpointing, plan.mini_batch), budget=budget)


def candidates(rows: int) -> list[int]:
    """Sizes of mini-batches worth trying for so many samples: the last one no smaller than it must be."""
    counts = {-(-rows // size) for size in SIZES if size <= rows} | ({1} if rows <= SIZES[-1] else set())
    return sorted({-(-rows // count) for count in counts})


def _cost(footprint: Footprint, config: Config, how: Checkpointing, mini_batch: int) -> float:
    """Time of a sample, in passes at best speed: forward and backward are three; more repeat or have other values."""
    without = 0 if not config.is_rl else 1 + (config.grpo.kl_beta > 0)
    tokens = footprint.tokens * mini_batch
    mixed = config.is_rl and config.train.fuse is not False and config.rollout.n_generation % mini_batch > 0
    return (3 + without + AGAIN[how]) * (1 + FILLED / tokens) * (1 + CAPTIONS * mixed)
