"""Values that cross module boundaries.

Letters in shapes: B samples, P prompts, G samples of a group, L text tokens, D text width, T denoising steps, F frames.

``latents`` keep the rank of their VAE: (B, C, H, W) for images, (B, C, F, H, W) for video.
``media`` is always (B, F, 3, H, W) in [0, 1]; an image has F = 1. On their way from files to the autoencoder 8-bit
media stay uint8 of 0 to 255, which ``unit`` brings to [0, 1].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Protocol, Self

import torch
from torch import Tensor


def unit(media: Tensor) -> Tensor:
    """float32 in [0, 1] of media that are uint8 of 0 to 255; others as they are."""
    return media.to(torch.float32).div_(255) if media.dtype == torch.uint8 else media


def onto(x: Tensor, device: torch.device) -> Tensor:
    """``x`` on ``device``; the host does not wait for what the device still has to do, nor for the copy to it."""
    if x.device.type == "cpu" and device.type == "cuda":
        x = x.pin_memory()
    return x.to(device, non_blocking=x.device.type == "cpu")


class Rows:
    """Row selection shared by every batch type: ``batch[rows]`` selects along dim 0 of every tensor and list."""

    def __getitem__(self, rows: Tensor) -> Self:
        """Select ``rows`` ((N,) int64 on the CPU); tensors are indexed on the device they live on."""
        picked: dict[str, object] = {}
        for column in fields(self):  # type: ignore[arg-type]
            value = getattr(self, column.name)
            if isinstance(value, Tensor):
                picked[column.name] = value[onto(rows, value.device)]
            elif isinstance(value, Rows):
                picked[column.name] = value[rows]
            elif isinstance(value, list):
                picked[column.name] = [value[i] for i in rows.tolist()]
        return replace(self, **picked)  # type: ignore[type-var]

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Put batches one after the other; a field that is None in the first part stays None."""
        joined: dict[str, object] = {}
        for column in fields(cls):  # type: ignore[arg-type]
            values = [getattr(part, column.name) for part in parts]
            if isinstance(values[0], Tensor):
                joined[column.name] = torch.cat(values)
            elif isinstance(values[0], Rows):
                joined[column.name] = type(values[0]).cat(values)
            elif isinstance(values[0], list):
                joined[column.name] = [item for value in values for item in value]
        return replace(parts[0], **joined)  # type: ignore[type-var]


@dataclass(frozen=True)
class Cond(Rows):
    """What the transformer attends to: text embeddings, which of their tokens are real, and a frame that is given.

    ``texts`` says, without a look at the device, which rows have the same embeddings.
    """

    embeds: Tensor  # (B, L, D)
    mask: Tensor  # (B, L) 1 = keep, 0 = padding
    first: Tensor | None = None  # (B, C, 1, H, W) clean latents of the first frame, of image-to-video
    texts: list[str] | None = None  # the prompts; None: unknown
    pooled: Tensor | None = None  # (B, E) one embedding of the whole prompt, of families that have it


@dataclass(frozen=True)
class Path(Rows):
    """The stochastic steps of samples, K a sample, kept in host memory in float32."""

    latents: Tensor  # (B, K + 1, C, ..., H, W) before every step and after the last
    sigmas: Tensor  # (B, K + 1) their noise levels
    log_probs: Tensor | None  # (B, K) of the steps, from sampling; None: to be computed with the learner's code
    means: Tensor | None = None  # (B, K, C, ..., H, W) of the steps, from sampling, where the loss needs them


@dataclass(frozen=True)
class Rollout(Rows):
    """Finished samples, one a row; the rows of a group need not be adjacent, ``groups`` says where they belong."""

    ids: Tensor  # (B,) int64, CPU: number of the sample within the step, over all ranks
    groups: Tensor  # (B,) int64, CPU: number of the group (equal prompts of a step are one group), over all ranks
    prompts: list[str]
    cond: Cond
    latents: Tensor  # (B, C, ..., H, W) clean x0, in the model's latent scale
    sigmas: Tensor  # (B, T) noise levels visited, descending; sigma = 0 is not among them
    advantages: Tensor | None = None  # (B,) float32, on the latents' device
    path: Path | None = None  # of stochastic sampling


@dataclass(frozen=True)
class Term:
    """One backward pass. ``weight`` over all terms that a rank gives to an optimiser step sums to 1."""

    loss: Tensor  # ()
    weight: float
    metrics: Mapping[str, Tensor]  # name -> (), detached; averaged with the same weights
    peaks: Mapping[str, Tensor] = field(default_factory=dict)  # name -> (), detached; the largest of all terms counts


class Trainable(Protocol):
    """What an optimiser step needs of whatever is trained."""

    masters: list[torch.nn.Parameter]

    def collect_gradients(self) -> None:
        """Add the gradients of the working weights to the fp32 masters' and clear the former."""

    def publish(self) -> None:
        """Copy the masters into the working weights."""

    def learner_moved(self) -> None:
        """Hear that the masters have changed."""
