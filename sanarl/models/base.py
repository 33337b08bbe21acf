"""What a model family must provide."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sanarl.types import Cond


class Source(Protocol):
    """What samples are drawn from: a policy, or a copy of it."""

    model: "FlowModel"

    def guided_velocity(
        self, x_t: Tensor, sigma: Tensor, cond: Cond, empty: Cond | None, guidance_scale: float
    ) -> Tensor:
        """See ``Policy.guided_velocity``."""

    def empty_prompt(self, guidance_scale: float) -> Cond | None:
        """See ``Policy.empty_prompt``."""


class FlowModel(Protocol):
    """A rectified-flow model behind one interface; timestep scaling, masks and learned sigma end here."""

    transformer: nn.Module
    pipeline: Any
    """The diffusers pipeline that the parts come from; exports are written through it."""
    device: torch.device
    """Where it computes."""
    flow_shift: float
    """The timestep shift of the model's own scheduler."""
    latent_shape: tuple[int, ...]
    """Shape of one sample's latents, without the batch."""

    def encode_prompts(self, prompts: list[str]) -> Cond:
        """Embed prompts, each distinct one once: B strings -> Cond of B rows."""

    def encode_media(self, media: Tensor, mini_batch: int) -> Tensor:
        """(B, F, 3, H, W) in [0, 1], or uint8 of 0 to 255 -> latents (B, C, ..., H', W') float32, in the model's scale.

        ``mini_batch`` samples are encoded at once.
        """

    def decode(self, latents: Tensor) -> Tensor:
        """Latents -> media (B, F, 3, H, W) float32 in [0, 1]."""

    def compile_decoder(self, batch: int) -> None:
        """Compile decoding, channels last, for ``batch`` samples at once: fewer are filled up."""

    def velocity(self, x_t: Tensor, sigma: Tensor, cond: Cond) -> Tensor:
        """The model's velocity at noisy latents ``x_t`` and noise levels ``sigma`` (B,), in the dtype of ``x_t``."""
