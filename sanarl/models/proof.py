"""Whether an export is what was trained: it is loaded as a person would load it, and must predict the same."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor, nn

from sanarl.errors import UserError
from sanarl.maths import draw
from sanarl.models.export import Target
from sanarl.models.policy import Policy

PROMPTS = ["a red circle", "a photograph of a street at night"]
SIGMAS = (0.9, 0.5, 0.1)
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}
"""Transformer's dtype -> the largest relative distance of velocities that counts as the same: some ten roundings."""


@dataclass(frozen=True)
class Proof:
    """What was measured, as |v - v'| / |v| over prompts and noise levels."""

    error: float
    """From the run's velocity to that of the loaded export."""
    effect: float
    """From the run's velocity to the base's."""
    tolerance: float

    def require(self, folder: Path) -> None:
        """Say what is wrong with the export.

        Raises:
            UserError: when what was trained acts like the base, or the export is not what was trained.
        """
        if self.effect == 0:
            raise UserError(
                f"{folder}: these values predict exactly what the base predicts: nothing was trained at this step; "
                "choose a later one with --step"
            )
        if not (self.error <= self.tolerance and self.error < self.effect / 2):
            raise UserError(
                f"{folder}: loaded again it is not what was trained: its velocity is {self.error:.2e} away (accepted "
                f"{self.tolerance:g}, and less than half of the {self.effect:.2e} that training moved it)"
            )


def prove(
    policy: Policy,
    trained: Sequence[Tensor],
    base: Sequence[Tensor],
    folder: Path,
    target: Target,
    fresh: Callable[[], nn.Module],
) -> Proof:
    """Load an export and compare velocities at fixed noise.

    Args:
        policy: whose values were exported.
        trained: those values. base: what they shall differ from.
        folder: the export. target: who it is for.
        fresh: gives the base's transformer anew.
    """
    with policy.using(trained):
        ours = velocities(policy, policy.model.transformer)
    with policy.using(base):
        before = velocities(policy, policy.model.transformer)
    theirs = velocities(policy, _loaded(policy, folder, target, fresh))
    size = float(ours.norm())
    dtype = next(policy.model.transformer.parameters()).dtype
    return Proof(float((theirs - ours).norm()) / size, float((before - ours).norm()) / size, TOLERANCES[dtype])


@torch.no_grad()
def velocities(policy: Policy, transformer: nn.Module) -> Tensor:
    """What a transformer predicts in the place of the policy's, float64: (sigmas, prompts, ...)."""
    model = copy.copy(policy.model)
    model.transformer = transformer
    device = policy.model.transformer.device
    cond = model.encode_prompts(PROMPTS)
    noise = draw.normal(torch.arange(len(PROMPTS)), model.latent_shape, "export").to(device)
    return torch.stack(
        [model.velocity(noise, torch.full((len(noise),), sigma, device=device), cond).double() for sigma in SIGMAS]
    )


def _loaded(policy: Policy, folder: Path, target: Target, fresh: Callable[[], nn.Module]) -> nn.Module:
    pipeline, transformer = policy.model.pipeline, policy.model.transformer
    if target == "peft":
        return PeftModel.from_pretrained(fresh(), folder, is_trainable=False).eval()
    if (folder / "model_index.json").is_file():
        absent = {name: None for name, part in pipeline.components.items() if part is None}
        found = type(pipeline).from_pretrained(folder, dtype={"transformer": transformer.dtype}, **absent)
        return found.transformer.to(transformer.device)
    own = type(pipeline)(**(pipeline.components | {"transformer": fresh()}))
    own.load_lora_weights(folder)
    return own.transformer
