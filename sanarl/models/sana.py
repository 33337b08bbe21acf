"""SANA through its diffusers pipelines, pictures and video in one class.

Xie et al., arXiv:2410.10629; SANA-1.5, arXiv:2501.18427; SANA-Video, arXiv:2509.24695.
"""

import inspect

import torch
from diffusers import SanaPipeline, SanaVideoPipeline
from torch import Tensor

from sanarl.models.base import Use
from sanarl.models.fused import caption_mask
from sanarl.models.offload import Visitor
from sanarl.models.pixels import Pixels
from sanarl.models.shift import check_patches, flow_shift
from sanarl.models.text import each_once
from sanarl.types import Cond

TIMESTEPS = 1000  # the transformer is conditioned on sigma in thousandths


class Sana:
    """Latents of the rank of their autoencoder, Gemma text embeddings, a linear-attention transformer."""

    embeds_guidance = False

    def __init__(self, pipeline: SanaPipeline | SanaVideoPipeline, use: Use):
        """Place the parts and freeze them; ``pipeline`` is in the dtypes that shall be computed in.

        Raises:
            UserError: when the autoencoder or the transformer's patches do not fit this size.
        """
        self.pipeline, self.device = pipeline, use.device
        self.transformer = pipeline.transformer.requires_grad_(False).eval().to(use.device)
        self._text_encoder = Visitor(pipeline.text_encoder, use.device, stays=not use.offload)
        self._max_prompt_length = use.max_prompt_length
        self._suffix = "" if use.motion_score is None else f" motion score: {use.motion_score}."
        self._instruction = _default_instruction(pipeline) if use.complex_human_instruction else None
        config = self.transformer.config
        self._pixels = Pixels(pipeline.vae, config.in_channels, use)
        self.latent_shape = self._pixels.latent_shape
        patch = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[-1]
        self.num_tokens, self.text_tokens = check_patches(self.latent_shape, patch, use.size), use.max_prompt_length
        self.flow_shift = flow_shift(pipeline.scheduler.config, self.num_tokens)
        self._learned_sigma = config.out_channels == 2 * config.in_channels
        self._timestep_scale = config.get("timestep_scale", 1.0)
        self.encode_media, self.decode = self._pixels.encode, self._pixels.decode
        self.compile_decoder = self._pixels.compile_decoder

    @torch.no_grad()
    def encode_prompts(self, prompts: list[str]) -> Cond:
        """Embed prompts, each distinct one once: B strings -> Cond of (B, L, D) and (B, L); B may be 0."""
        with self._text_encoder.here():
            return each_once(prompts, self._encode)

    def _encode(self, prompts: list[str]) -> Cond:
        embeds, mask, _, _ = self.pipeline.encode_prompt(
            [p + self._suffix if p else p for p in prompts],
            do_classifier_free_guidance=False,
            device=self.device,
            max_sequence_length=self._max_prompt_length,
            # The empty prompt, of guidance or of caption dropout, never carries the instruction.
            complex_human_instruction=self._instruction if prompts[0] else None,
        )
        return Cond(embeds, mask)

    def blank(self, tokens: int) -> Cond:
        """See FlowModel."""
        width = self.transformer.config.caption_channels
        return Cond(torch.empty(1, tokens, width, device="meta"), torch.empty(1, tokens, device="meta"))

    def velocity(self, x_t: Tensor, sigma: Tensor, cond: Cond) -> Tensor:
        """Velocity at ``x_t`` and ``sigma`` (B,), computed in the transformer's dtype.

        Pipelines for pictures multiply the timestep by the transformer's timestep_scale; those for video have none.
        A first frame that is given takes the place of the noisy one, at timestep 0, as SanaImageToVideoPipeline has it;
        its velocity is the straight line to it, so that every solver ends there.
        """
        dtype = self.transformer.dtype
        timestep = sigma.float() * TIMESTEPS * self._timestep_scale
        if cond.first is not None:
            noisy, x_t = x_t, torch.cat([cond.first.to(x_t.dtype), x_t[:, :, 1:]], dim=2)
            timestep = self._timestep_of_tokens(timestep, x_t)
        out = self.transformer(
            x_t.to(dtype),
            encoder_hidden_states=cond.embeds.to(dtype),
            encoder_attention_mask=caption_mask(self.transformer, cond, dtype),
            timestep=timestep,
            return_dict=False,
        )[0]
        if self._learned_sigma:
            out = out.chunk(2, dim=1)[0]
        out = out.to(x_t.dtype)
        if cond.first is None:
            return out
        line = (noisy[:, :, :1] - x_t[:, :, :1]) / sigma.to(x_t.dtype).view(-1, 1, 1, 1, 1)
        return torch.cat([line, out[:, :, 1:]], dim=2)

    def _timestep_of_tokens(self, timestep: Tensor, x_t: Tensor) -> Tensor:
        """(B,) -> (B, 1, F', H', W') for the transformer's patches of ``x_t``; 0 for the first latent frame."""
        edges = zip(x_t.shape[2:], self.transformer.config.patch_size, strict=True)
        patches = [cells // patch for cells, patch in edges]
        spread = timestep.view(-1, 1, 1, 1, 1).repeat(1, 1, *patches)
        spread[:, :, 0] = 0.0
        return spread


def _default_instruction(pipeline: SanaPipeline | SanaVideoPipeline) -> list[str]:
    """The instruction that the pipeline's own call puts before a prompt."""
    return list(inspect.signature(type(pipeline).__call__).parameters["complex_human_instruction"].default)
