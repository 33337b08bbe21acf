"""Stable Diffusion 3 and 3.5 through StableDiffusion3Pipeline: pictures; any of the three text encoders may be absent.

Esser et al., arXiv:2403.03206. The transformer attends to every text token, padding included, as it was trained to.
"""

from contextlib import ExitStack

import torch
import torch.nn.functional as F
from diffusers import StableDiffusion3Pipeline
from torch import Tensor

from sanarl.errors import UserError
from sanarl.models.base import Use
from sanarl.models.offload import Visitor
from sanarl.models.pixels import Pixels
from sanarl.models.shift import check_patches, flow_shift
from sanarl.models.text import CLIP_TOKENS, check_length, each_once, refuse_sana_keys, token_ids
from sanarl.types import Cond

TIMESTEPS = 1000  # the transformer is conditioned on sigma in thousandths


class StableDiffusion3:
    """AutoencoderKL latents, tokens of two CLIPs and a T5, the CLIPs' pooled embeddings, a joint-attention transformer.

    An encoder that the pipeline does not have is replaced by zeros of its shape, as in training, where each was dropped
    on its own (arXiv:2403.03206, section 5.1); diffusers' own pipeline has that for the T5.
    """

    embeds_guidance = False

    def __init__(self, pipeline: StableDiffusion3Pipeline, use: Use):
        """Place the parts and freeze them; ``pipeline`` is in the dtypes that shall be computed in.

        Raises:
            UserError: when the size does not fit the autoencoder, the patches or the positions, or a key is SANA's.
        """
        refuse_sana_keys(use, type(pipeline).__name__)
        check_length(use.max_prompt_length)
        self.pipeline, self.device = pipeline, use.device
        self.transformer = pipeline.transformer.requires_grad_(False).eval().to(use.device)
        encoders = (pipeline.text_encoder, pipeline.text_encoder_2, pipeline.text_encoder_3)
        self._encoders = [None if e is None else Visitor(e, use.device, stays=not use.offload) for e in encoders]
        self._tokenizers = (pipeline.tokenizer, pipeline.tokenizer_2, pipeline.tokenizer_3)
        self._dtype = next((e.dtype for e in encoders if e is not None), self.transformer.dtype)
        self._max_prompt_length = use.max_prompt_length
        config = self.transformer.config
        self._pixels = Pixels(pipeline.vae, config.in_channels, use)
        self.latent_shape = self._pixels.latent_shape
        self.num_tokens = check_patches(self.latent_shape, config.patch_size, use.size)
        self.text_tokens = CLIP_TOKENS + use.max_prompt_length
        largest = config.pos_embed_max_size * config.patch_size
        if max(self.latent_shape[-2:]) > largest:
            raise UserError(
                f"policy.diffusers.inference_size: found {list(use.size)}; that is {list(self.latent_shape[-2:])} "
                f"latent cells, and the transformer has positions for {largest} x {largest}"
            )
        self.flow_shift = flow_shift(pipeline.scheduler.config, self.num_tokens)
        self.encode_media, self.decode = self._pixels.encode, self._pixels.decode
        self.compile_decoder = self._pixels.compile_decoder

    @torch.no_grad()
    def encode_prompts(self, prompts: list[str]) -> Cond:
        """Embed prompts: B strings -> Cond of (B, 77 + L, D) and (B, E)."""
        with ExitStack() as stack:
            for encoder in self._encoders:
                if encoder is not None:
                    stack.enter_context(encoder.here())
            return each_once(prompts, self._encode)

    def _encode(self, prompts: list[str]) -> Cond:
        config, n = self.transformer.config, len(prompts)
        first, second = (self._clip(i, prompts) for i in (0, 1))
        width = config.pooled_projection_dim  # of both together; what one is wide is known from the other
        if first is None and second is None:
            clip, pooled = (self._zeros(*shape) for shape in ((n, CLIP_TOKENS, width), (n, width)))
        else:
            missing = width - sum(found[1].shape[-1] for found in (first, second) if found is not None)
            nothing = self._zeros(n, CLIP_TOKENS, missing), self._zeros(n, missing)
            pairs = zip(first or nothing, second or nothing, strict=True)
            clip, pooled = (torch.cat(pair, dim=-1) for pair in pairs)
        clip = F.pad(clip, (0, config.joint_attention_dim - clip.shape[-1]))
        embeds = torch.cat([clip, self._t5(prompts)], dim=1)
        return Cond(embeds, torch.ones(embeds.shape[:2], dtype=torch.int64, device=embeds.device), pooled=pooled)

    def _clip(self, which: int, prompts: list[str]) -> tuple[Tensor, Tensor] | None:
        """Tokens (N, 77, D) of the last layer but one, and the projected embedding (N, E), of one of the CLIPs."""
        encoder = self._encoders[which]
        if encoder is None:
            return None
        ids = token_ids(self._tokenizers[which], prompts, CLIP_TOKENS, self.device)
        found = encoder.module(ids, output_hidden_states=True)
        return found.hidden_states[-2], found.text_embeds

    def _t5(self, prompts: list[str]) -> Tensor:
        """(N, L, D)."""
        encoder, length = self._encoders[2], self._max_prompt_length
        if encoder is None:
            return self._zeros(len(prompts), length, self.transformer.config.joint_attention_dim)
        return encoder.module(token_ids(self._tokenizers[2], prompts, length, self.device))[0]

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, device=self.device, dtype=self._dtype)

    def blank(self, tokens: int) -> Cond:
        """See FlowModel."""
        config = self.transformer.config
        embeds = torch.empty(1, tokens, config.joint_attention_dim, device="meta")
        return Cond(embeds, embeds[..., 0], pooled=torch.empty(1, config.pooled_projection_dim, device="meta"))

    def velocity(self, x_t: Tensor, sigma: Tensor, cond: Cond) -> Tensor:
        """Velocity at ``x_t`` (B, C, H, W) and ``sigma`` (B,), computed in the transformer's dtype."""
        assert cond.pooled is not None, "conditions of this family have a pooled embedding"
        dtype = self.transformer.dtype
        out = self.transformer(
            x_t.to(dtype),
            encoder_hidden_states=cond.embeds.to(dtype),
            pooled_projections=cond.pooled.to(dtype),
            timestep=sigma.float() * TIMESTEPS,
            return_dict=False,
        )[0]
        return out.to(x_t.dtype)
