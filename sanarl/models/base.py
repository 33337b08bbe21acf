"""What a model family must provide."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from sanarl.models.checkpointing import repeated
from sanarl.types import Cond

GRAPHS = 64
"""Of the blocks of a class, at most."""


@dataclass(frozen=True)
class Use:
    """How a model is used: what a family's class is told beside the pipeline."""

    size: tuple[int, int]
    """Height and width of samples in pixels."""
    device: torch.device
    """Where to compute."""
    frames: int = 1
    """Of a sample; 1 for pictures."""
    max_prompt_length: int = 300
    """Text tokens kept of a prompt."""
    guidance_scale: float = 1.0
    """For models that take it as an input; others are guided from outside, see ``Policy.guided_velocity``."""
    complex_human_instruction: bool = False
    """SANA: put the pipeline's own instruction before every prompt, as its call does."""
    motion_score: int | None = None
    """SANA-Video: appended to every prompt but the empty one as the model's training captions have it."""
    offload: bool = False
    """Keep text encoders and the autoencoder on the CPU while they are not at work."""
    vae_tiles: bool | Literal["auto"] = "auto"
    """See :class:`sanarl.models.tiles.Thrift`."""


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
    """A rectified-flow model behind one interface; timestep scaling, masks and learned sigma end here.

    A shallow copy with another ``transformer`` is the same model with that transformer.
    """

    transformer: nn.Module
    pipeline: Any
    """The diffusers pipeline that the parts come from; exports are written through it."""
    device: torch.device
    """Where it computes."""
    flow_shift: float
    """The timestep shift of the model's own scheduler at this size."""
    latent_shape: tuple[int, ...]
    """Shape of one sample's latents, without the batch."""
    num_tokens: int
    """Of a sample in the transformer, text apart."""
    text_tokens: int
    """Of a prompt."""
    embeds_guidance: bool
    """Whether guidance is an input of the transformer, so that no second pass is made for it."""

    def encode_prompts(self, prompts: list[str]) -> Cond:
        """Embed prompts, each distinct one once: B strings -> Cond of B rows."""

    def blank(self, tokens: int) -> Cond:
        """A condition of one row and so many tokens on the meta device: shapes without values."""

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


def repeated_blocks(transformer: nn.Module) -> list[nn.Module]:
    """The blocks of a transformer's lists, in their order: what is worth compiling once and used many times."""
    return [block for blocks in repeated(transformer) for block in blocks]


def compile_each(blocks: list[nn.Module], **options: Any) -> None:
    """Compile blocks in place, with ``torch.compile``'s options; equal ones share their graphs.

    All blocks of a class are one code, with a graph for each kind of block and of pass, dtype and shape, and those of a
    copy are more of them; past its limit of 8 torch falls back to eager in silence.
    """
    dynamo = torch._dynamo.config
    limit = "recompile_limit" if hasattr(dynamo, "recompile_limit") else "cache_size_limit"  # torch 2.6's name
    setattr(dynamo, limit, max(getattr(dynamo, limit), GRAPHS))
    for block in blocks:
        block.compile(**options)
