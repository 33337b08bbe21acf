"""One transformer, several policies: learner (trained), old (rolls out), reference (what training started from).

The transformer holds one set of working weights in the dtype that is computed in: a LoRA slot, or all of its weights.
Every policy is a set of values for them. The set that is needed is copied into the working weights, so all policies
share base weights and kernels, and nothing about the modules ever changes. The learner's values are the fp32 masters
that the optimiser steps.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from sanarl.models.base import FlowModel
from sanarl.shards import is_part, like, local
from sanarl.types import Cond


class Policy:
    """A model whose trainable weights can be given other values for a while; see the module's text."""

    def __init__(
        self,
        model: FlowModel,
        trainable: dict[str, Tensor],
        master_dtype: torch.dtype,
        kept_sets: bool,
        gathered: Callable[[], AbstractContextManager[None]] = nullcontext,
    ):
        """Take over what requires a gradient in ``model.transformer``.

        Where ranks share the weights, every set of values is cut over them as the working weights are.

        Args:
            model: its transformer's trainable parameters are the working weights.
            trainable: name -> starting value, in full precision, for exactly those parameters.
            master_dtype: dtype of the learner's values and of every other set.
            kept_sets: hold the sets ``old`` and ``reference`` too (reinforcement learning).
            gathered: a context in which the working weights are whole on every rank.
        """
        self.model, self.gathered = model, gathered
        working = {n: p for n, p in model.transformer.named_parameters() if p.requires_grad}
        assert working.keys() == trainable.keys(), "starting values do not fit the trainable parameters"
        self.names, self._working = list(working), list(working.values())
        start = [trainable[n].detach().to(p.device, master_dtype) for n, p in working.items()]
        self.masters = [nn.Parameter(v.clone()) for v in start]
        self.sets: dict[str, list[Tensor]] = (
            {name: [v.clone() for v in start] for name in ("old", "reference")} if kept_sets else {}
        )
        self.old_is_learner = kept_sets
        self.on_pass: Callable[[torch.Size, int], None] | None = None
        """Hears of every pass: shape of the latents (B, C, ..., H, W), tokens of text."""
        self.publish()

    # ---- for the optimiser step

    @torch.no_grad()
    def collect_gradients(self) -> None:
        """Add the working weights' gradients to the masters' and clear the former."""
        for master, weight in zip(self.masters, self._working, strict=True):
            if weight.grad is None:
                continue
            if master.grad is None:
                master.grad = torch.zeros_like(master)
            (mine,), (added,) = local([master.grad]), local([weight.grad])
            mine += added
            weight.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the learner's values into the working weights."""
        self._put(self.masters)

    def _put(self, values: Sequence[Tensor]) -> None:
        torch._foreach_copy_(local(self._working), local(values))

    @property
    def is_sharded(self) -> bool:
        """Whether ranks share the weights, so that each forward and backward pass is one of all ranks."""
        return any(is_part(master) for master in self.masters)

    def learner_moved(self) -> None:
        """Say that the masters have changed: the old values are no longer the learner's."""
        self.old_is_learner = False

    # ---- policies

    @contextmanager
    def using(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Run with other values in the working weights; the learner's come back afterwards."""
        with torch.no_grad():
            self._put(values)
        try:
            yield
        finally:
            self.publish()

    @contextmanager
    def old(self) -> Iterator[None]:
        """Run as the policy that samples rollouts."""
        with self.using(self.sets["old"]):
            yield

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Run as the policy that training started from."""
        with self.using(self.sets["reference"]):
            yield

    @torch.no_grad()
    def blend_old(self, decay: float) -> None:
        """old <- decay * old + (1 - decay) * learner; a decay of 0 copies exactly."""
        if decay == 0.0:
            torch._foreach_copy_(self.sets["old"], list(self.masters))
        else:
            torch._foreach_lerp_(self.sets["old"], list(self.masters), 1 - decay)
        self.old_is_learner = decay == 0.0

    def velocity(self, x_t: Tensor, sigma: Tensor, cond: Cond) -> Tensor:
        """The model's velocity under the values that are in use."""
        if self.on_pass is not None:
            self.on_pass(x_t.shape, cond.embeds.shape[1])
        return self.model.velocity(x_t, sigma, cond)

    def guided_velocity(
        self, x_t: Tensor, sigma: Tensor, cond: Cond, empty: Cond | None, guidance_scale: float
    ) -> Tensor:
        """The velocity with classifier-free guidance (Ho & Salimans, arXiv:2207.12598), in sampling and in training.

        v = v(empty) + guidance_scale * (v(prompt) - v(empty)), in two passes of the same batch.

        Args:
            x_t: noisy latents (B, C, ..., H, W). sigma: (B,).
            cond: of the prompts, B rows.
            empty: of the empty prompt, one row; None for no guidance.
            guidance_scale: above 1.
        """
        v = self.velocity(x_t, sigma, cond)
        if empty is None:
            return v
        rows = torch.zeros(len(x_t), dtype=torch.int64)
        v_empty = self.velocity(x_t, sigma, replace(empty[rows], first=cond.first))
        return v_empty + guidance_scale * (v - v_empty)

    def empty_prompt(self, guidance_scale: float) -> Cond | None:
        """The empty prompt, one row, where ``guidance_scale`` asks for guidance that is no input of the model."""
        return self.model.encode_prompts([""]) if guidance_scale > 1 and not self.model.embeds_guidance else None

    # ---- checkpoints

    def state_dict(self) -> dict[str, object]:
        """Every value set by name, and whether the old one equals the learner's."""
        sets = {"learner": self.masters, **self.sets}
        return {
            "old_is_learner": self.old_is_learner,
            "sets": {s: dict(zip(self.names, (v.detach() for v in vs), strict=True)) for s, vs in sets.items()},
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        """Take over a saved state.

        Raises:
            ValueError: when its sets, names or shapes are not this policy's.
        """
        sets = {"learner": self.masters, **self.sets}
        if state["sets"].keys() != sets.keys():
            raise ValueError(f"value sets {sorted(state['sets'])} were saved, {sorted(sets)} are needed")
        for name, values in sets.items():
            saved = state["sets"][name]
            wrong = [n for n, v in zip(self.names, values, strict=True) if n not in saved or saved[n].shape != v.shape]
            if wrong or len(saved) != len(values):
                raise ValueError(
                    f"the saved {name!r} values do not fit this model, first at {(wrong or sorted(saved))[0]}"
                )
            for n, v in zip(self.names, values, strict=True):
                v.copy_(like(saved[n], v))
        self.old_is_learner = state["old_is_learner"]
        self.publish()
