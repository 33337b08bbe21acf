"""The optimiser, its learning rate as a function of the update number, and the moving average of the weights."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sanarl.shards import like, local


@dataclass(frozen=True)
class OptimSettings:
    """Names as in the configuration's ``train.optm_*``."""

    name: Literal["AdamW", "Adam"]
    lr: float
    betas: tuple[float, float]
    epsilon: float
    weight_decay: float
    impl: Literal["fused", "foreach", "for-loop"]
    warmup_steps: int
    warmup_start_factor: float
    decay_steps: int
    """Updates at the end of the run during which the rate falls; 0: never."""
    decay_type: Literal["linear", "cosine", "sqrt"]
    min_lr_factor: float


def build(params: list[nn.Parameter], settings: OptimSettings) -> torch.optim.Optimizer:
    """Adam (Kingma & Ba, arXiv:1412.6980) or AdamW (Loshchilov & Hutter, arXiv:1711.05101) over ``params``."""
    kind = {"AdamW": torch.optim.AdamW, "Adam": torch.optim.Adam}[settings.name]
    return kind(
        params,
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        fused=settings.impl == "fused",
        foreach=settings.impl == "foreach",
    )


def lr_factor(update: int, total: int, settings: OptimSettings) -> float:
    """Factor on the learning rate of update number ``update`` (from 0) of ``total``.

    A linear warm-up from ``warmup_start_factor`` that reaches 1 at update ``warmup_steps``; then 1; then, over the last
    ``decay_steps`` updates, a fall to ``min_lr_factor`` at update ``total``: linear, a quarter cosine wave's half
    period, or 1 - sqrt(progress).
    """
    if update < settings.warmup_steps:
        start = settings.warmup_start_factor
        return start + (1 - start) * (update + 1) / (settings.warmup_steps + 1)
    into = update + settings.decay_steps - total
    if settings.decay_steps == 0 or into <= 0:
        return 1.0
    progress = min(into / settings.decay_steps, 1.0)
    match settings.decay_type:
        case "linear":
            left = 1 - progress
        case "cosine":
            left = 0.5 * (1 + math.cos(math.pi * progress))
        case "sqrt":
            left = 1 - math.sqrt(progress)
    return settings.min_lr_factor + (1 - settings.min_lr_factor) * left


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every parameter group the learning rate ``lr``."""
    for group in optimizer.param_groups:
        group["lr"] = lr


class OptimizerState:
    """What a checkpoint keeps of an optimiser; moments take their parameter's layout over the ranks when loaded."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        """Nothing is read yet."""
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what a checkpoint kept."""
        params = [p for group in self._optimizer.param_groups for p in group["params"]]
        moments = {
            place: {
                name: like(value, params[place]) if isinstance(value, Tensor) and value.dim() else value
                for name, value in kept.items()
            }
            for place, kept in state["state"].items()
        }
        self._optimizer.load_state_dict({**state, "state": moments})


class Ema:
    """Exponential moving average of the learner's values, with the warm-up min((1 + n) / (10 + n), decay)."""

    def __init__(self, masters: Sequence[Tensor], decay: float, interval: int):
        """Start at the present values; every ``interval``-th optimiser update counts."""
        self._masters, self._decay, self._interval = list(masters), decay, max(interval, 1)
        self.values = [m.detach().clone() for m in masters]
        self.count = 0

    @torch.no_grad()
    def update(self, updates: int) -> None:
        """Follow the learner after optimiser update number ``updates`` (from 1)."""
        if updates % self._interval:
            return
        decay = min((1 + self.count) / (10 + self.count), self._decay)
        torch._foreach_lerp_(local(self.values), local(m.detach() for m in self._masters), 1 - decay)
        self.count += 1

    def state_dict(self) -> dict[str, object]:
        """What a checkpoint keeps."""
        return {"values": self.values, "count": self.count}

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        """Take over what a checkpoint kept."""
        if len(state["values"]) != len(self.values):
            raise ValueError(f"{len(state['values'])} averaged tensors were saved, {len(self.values)} are needed")
        for value, saved in zip(self.values, state["values"], strict=True):
            value.copy_(like(saved, value))
        self.count = state["count"]
