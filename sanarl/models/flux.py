"""FLUX.1 through FluxPipeline: pictures, packed latents, guidance as an input of the transformer.

Black Forest Labs' FLUX.1, from which FLUX.1-dev is distilled with its guidance. The transformer attends to every text
token, padding included.
"""

import torch
from diffusers import FluxPipeline
from torch import Tensor

from sanarl.errors import UserError
from sanarl.models.base import Use
from sanarl.models.offload import Visitor
from sanarl.models.pixels import Pixels
from sanarl.models.shift import check_patches, flow_shift
from sanarl.models.text import CLIP_TOKENS, check_length, each_once, refuse_sana_keys, token_ids
from sanarl.types import Cond

PACK = 2
"""Cells of a token's side: each token holds PACK x PACK cells of every channel."""


class Flux:
    """AutoencoderKL latents, tokens of a T5, a CLIP's pooled embedding, a transformer over tokens and their places."""

    def __init__(self, pipeline: FluxPipeline, use: Use):
        """Place the parts and freeze them; ``pipeline`` is in the dtypes that shall be computed in.

        Raises:
            UserError: when the size does not fit the autoencoder or the tokens, a text encoder is absent, or a key is
                SANA's.
        """
        refuse_sana_keys(use, type(pipeline).__name__)
        check_length(use.max_prompt_length)
        absent = [name for name in ("text_encoder", "text_encoder_2") if getattr(pipeline, name) is None]
        if absent:
            raise UserError(
                f"policy.model_name_or_path: this FluxPipeline has no {' and no '.join(absent)}, and FLUX.1 was never "
                "trained without"
            )
        self.pipeline, self.device = pipeline, use.device
        self.transformer = pipeline.transformer.requires_grad_(False).eval().to(use.device)
        stays = not use.offload
        self._clip, self._t5 = (
            Visitor(encoder, use.device, stays) for encoder in (pipeline.text_encoder, pipeline.text_encoder_2)
        )
        self._max_prompt_length, self._guidance_scale = use.max_prompt_length, use.guidance_scale
        config = self.transformer.config
        self.embeds_guidance = bool(config.guidance_embeds)
        self._pixels = Pixels(pipeline.vae, config.in_channels // PACK**2, use)
        self.latent_shape = self._pixels.latent_shape
        self.num_tokens, self.text_tokens = check_patches(self.latent_shape, PACK, use.size), use.max_prompt_length
        self.flow_shift = flow_shift(pipeline.scheduler.config, self.num_tokens)
        self.encode_media, self.decode = self._pixels.encode, self._pixels.decode
        self.compile_decoder = self._pixels.compile_decoder

    @torch.no_grad()
    def encode_prompts(self, prompts: list[str]) -> Cond:
        """Embed prompts: B strings -> Cond of (B, L, D) and (B, E)."""
        with self._clip.here(), self._t5.here():
            return each_once(prompts, self._encode)

    def _encode(self, prompts: list[str]) -> Cond:
        pipeline, device = self.pipeline, self.device
        pooled = self._clip.module(token_ids(pipeline.tokenizer, prompts, CLIP_TOKENS, device)).pooler_output
        embeds = self._t5.module(token_ids(pipeline.tokenizer_2, prompts, self._max_prompt_length, device))[0]
        return Cond(embeds, torch.ones(embeds.shape[:2], dtype=torch.int64, device=embeds.device), pooled=pooled)

    def blank(self, tokens: int) -> Cond:
        """See FlowModel."""
        config = self.transformer.config
        embeds = torch.empty(1, tokens, config.joint_attention_dim, device="meta")
        return Cond(embeds, embeds[..., 0], pooled=torch.empty(1, config.pooled_projection_dim, device="meta"))

    def velocity(self, x_t: Tensor, sigma: Tensor, cond: Cond) -> Tensor:
        """Velocity at ``x_t`` (B, C, H, W) and ``sigma`` (B,), computed in the transformer's dtype."""
        assert cond.pooled is not None, "conditions of this family have a pooled embedding"
        dtype, device = self.transformer.dtype, x_t.device
        guidance = torch.full_like(sigma, self._guidance_scale, dtype=torch.float32) if self.embeds_guidance else None
        out = self.transformer(
            packed(x_t).to(dtype),
            encoder_hidden_states=cond.embeds.to(dtype),
            pooled_projections=cond.pooled.to(dtype),
            timestep=sigma.float(),
            guidance=guidance,
            img_ids=places(*x_t.shape[-2:], device),
            txt_ids=torch.zeros(cond.embeds.shape[1], 3, device=device),
            return_dict=False,
        )[0]
        return unpacked(out.to(x_t.dtype), *x_t.shape[-2:])


def packed(latents: Tensor) -> Tensor:
    """(B, C, H, W) -> tokens (B, H/2 * W/2, 4 C), channel by channel."""
    x = latents.unflatten(3, (-1, PACK)).unflatten(2, (-1, PACK))  # (B, C, H/2, 2, W/2, 2)
    return x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpacked(tokens: Tensor, height: int, width: int) -> Tensor:
    """The inverse of ``packed``: (B, H/2 * W/2, 4 C) -> (B, C, H, W)."""
    x = tokens.unflatten(2, (-1, PACK, PACK)).unflatten(1, (height // PACK, width // PACK))
    return x.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


def places(height: int, width: int, device: torch.device) -> Tensor:
    """Where each token lies, (H/2 * W/2, 3): 0, row, column. Text lies at 0, 0, 0."""
    rows, columns = (torch.arange(edge // PACK, device=device, dtype=torch.float32) for edge in (height, width))
    grid = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack([torch.zeros_like(grid[0]), *grid], dim=-1).flatten(0, 1)
