"""Copies of a policy's transformer that sample: compiled, perhaps in fewer bits, with the policy's adapter live on top.

What is copied at every sync are the adapter's own values, compared exactly.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sanarl.errors import UserError
from sanarl.maths import draw
from sanarl.models.base import FlowModel, compile_each
from sanarl.models.copies import Copy, copied, live_layers
from sanarl.models.live import LiveLinear, as_it_is
from sanarl.models.policy import Policy
from sanarl.models.quantize import Format, Report, Rule, quantizer, report
from sanarl.types import Cond

Mode = Literal["compile", "compile_fp8", "compile_nvfp4", "emulated_fp8", "emulated_nvfp4"]

FORMATS: dict[Mode, Format | None] = {
    "compile": None,
    "compile_fp8": "fp8",
    "compile_nvfp4": "nvfp4",
    "emulated_fp8": "emulated_fp8",
    "emulated_nvfp4": "emulated_nvfp4",
}
TOLERANCES: dict[Format | None, float] = {
    None: 0.1,
    "fp8": 0.25,
    "emulated_fp8": 0.25,
    "nvfp4": 0.6,
    "emulated_nvfp4": 0.6,
}
"""How far the change that a synthetic adapter makes may be off; 1 would be an adapter that is not there."""
SYNTHETIC_B = 0.1


@dataclass(frozen=True)
class ReplicaSettings:
    """How a copy samples."""

    mode: Mode
    rule: Rule
    """Which layers are quantised, in modes that quantise."""
    compile_mode: str
    """torch.compile's mode, in modes that compile."""
    batch: int
    """Samples at once: smaller batches are filled up, so that one shape is compiled."""

    @property
    def compiles(self) -> bool:
        """Whether blocks are compiled."""
        return self.mode.startswith("compile")


@dataclass(frozen=True)
class WarmUp:
    """What the first passes of a copy took and showed."""

    seconds: float
    graphs: int
    """Graphs that were compiled."""
    error: float
    """Of the change that a synthetic adapter makes, relative to the policy's own."""


class Replica:
    """What samples in the policy's place; see the module's text.

    It has the policy's ways to be asked for velocities, under the values that were there at the last ``sync``.
    """

    def __init__(self, policy: Policy, settings: ReplicaSettings):
        """Copy the transformer.

        Raises:
            UserError: when there is no copy of such a model, or its adapter is on layers that a copy has no place for.
        """
        transformer = policy.model.transformer
        self.policy, self.settings = policy, settings
        self.model: FlowModel = policy.model
        kind = FORMATS[settings.mode]
        dtype = torch.bfloat16 if settings.compiles else transformer.dtype
        try:
            self._copy: Copy = copied(policy.model, dtype, as_it_is if kind is None else quantizer(kind, settings.rule))
        except UserError as error:
            raise UserError(f'rollout: mode {settings.mode}: {error}; use mode = "peft"') from None
        self.transformer = self._copy.transformer
        self.layers = live_layers(self.transformer)
        _check_adapters(policy, self.layers, settings.mode, self._copy.places)
        self.report: Report = report(self.layers, self._copy.linear_layers(), None if kind is None else settings.rule)
        if settings.compiles:
            # TransformerEngine's layers are no graph of torch's.
            compile_each(self._copy.blocks, mode=settings.compile_mode, dynamic=False, fullgraph=kind != "nvfp4")

    @property
    def num_bytes(self) -> int:
        """Memory of the copy."""
        tensors = (*self.transformer.parameters(), *self.transformer.buffers())
        return sum(t.numel() * t.element_size() for t in tensors)

    @torch.no_grad()
    def sync(self) -> None:
        """Take over the adapter values that the policy has in use.

        Raises:
            RuntimeError: naming the layers whose values did not arrive exactly.
        """
        self._copy.values_changed()
        same = torch.stack([layer.take_adapters() for layer in self.layers.values()]).tolist()
        wrong = [name for name, equal in zip(self.layers, same, strict=True) if not equal]
        if wrong:
            raise RuntimeError(f"{self.settings.mode}: adapter values did not arrive in {', '.join(wrong[:5])}")

    # ---- as a policy

    @torch.no_grad()
    def velocity(self, x_t: Tensor, sigma: Tensor, cond: Cond) -> Tensor:
        """See ``Policy.velocity``; ``cond`` has a row for every sample, or one for all."""
        if self.policy.on_pass is not None:
            self.policy.on_pass(x_t.shape, cond.embeds.shape[1])
        return self._copy.velocity(x_t, sigma, cond, self.settings.batch)

    def guided_velocity(
        self, x_t: Tensor, sigma: Tensor, cond: Cond, empty: Cond | None, guidance_scale: float
    ) -> Tensor:
        """See ``Policy.guided_velocity``."""
        v = self.velocity(x_t, sigma, cond)
        if empty is None:
            return v
        v_empty = self.velocity(x_t, sigma, empty)
        return v_empty + guidance_scale * (v - v_empty)

    def empty_prompt(self, guidance_scale: float) -> Cond | None:
        """See ``Policy.empty_prompt``."""
        return self.policy.empty_prompt(guidance_scale)

    # ---- before it is used

    @torch.no_grad()
    def warm_up(self) -> WarmUp:
        """Compile, and see that an adapter that cannot be overlooked changes the output as it changes the policy's.

        Raises:
            UserError: when it does not.
        """
        before, started = compiled_graphs(), time.perf_counter()
        policy, model = self.policy, self.model
        cond = model.encode_prompts(["a synthetic adapter"])
        cond = cond[torch.zeros(2, dtype=torch.int64)]
        x = draw.normal(torch.arange(2), model.latent_shape, "replica").to(policy.masters[0].device)
        sigma = torch.tensor([0.9, 0.3], device=x.device)
        changes = []
        for source in (policy, self):
            outputs = []
            for size in (SYNTHETIC_B, 0.0):
                with policy.using(_synthetic(policy.names, policy.masters, size)):
                    self.sync()
                    outputs.append(source.velocity(x, sigma, cond).double())
            changes.append(outputs[0] - outputs[1])
        self.sync()
        expected, found = changes
        error = float((found - expected).norm() / expected.norm())
        kind = FORMATS[self.settings.mode]
        if not error <= TOLERANCES[kind]:
            raise UserError(
                f"rollout: a copy of the model in mode {self.settings.mode} changes its output by {error:.1%} "
                f"differently from the model under the same adapter (accepted {TOLERANCES[kind]:.0%}); "
                'use mode = "peft", and report this'
            )
        if x.device.type == "cuda":
            torch.cuda.synchronize()
        return WarmUp(time.perf_counter() - started, compiled_graphs() - before, error)


def compiled_graphs() -> int:
    """Graphs that torch.compile has made in this process; one more after the first step is a recompilation."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _synthetic(names: Sequence[str], values: Sequence[Tensor], size: float) -> list[Tensor]:
    """An adapter drawn from its names alone: A as PEFT's gaussian start has it, B of the given size."""
    found = []
    for name, value in zip(names, values, strict=True):
        first = ".lora_A." in name
        scale = 1 / value.shape[0] if first else size
        drawn = draw.normal(torch.zeros(1, dtype=torch.int64), tuple(value.shape), "synthetic", name)[0]
        found.append((drawn * scale).to(value.device, value.dtype))
    return found


def _check_adapters(policy: Policy, layers: dict[str, LiveLinear], mode: str, places: str) -> None:
    """Every adapter of the policy must have its place in the copy: a forgotten one would never be heard of."""
    placed = {id(part.layer) for layer in layers.values() for part in layer.parts}
    names = {name.partition(".lora_")[0] for name in policy.names}
    modules = dict(policy.model.transformer.named_modules())
    lost = sorted(name for name in names if id(modules.get(name)) not in placed)
    if lost:
        raise UserError(
            f"policy.lora.target_modules: {', '.join(lost[:3])}{' ...' if len(lost) > 3 else ''} cannot be adapted in "
            f'mode {mode}, which has places on {places}; use mode = "peft"'
        )
