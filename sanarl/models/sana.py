"""SANA (Xie et al., arXiv:2410.10629; SANA-1.5, arXiv:2501.18427) through its diffusers pipeline."""

import inspect

import torch
from diffusers import SanaPipeline
from torch import Tensor

from sanarl.errors import UserError
from sanarl.models.offload import Visitor
from sanarl.types import Cond

TIMESTEPS = 1000  # the transformer is conditioned on sigma in thousandths
PROMPTS_AT_ONCE = 64


class Sana:
    """SANA for images: DC-AE latents (B, C, H/f, W/f), Gemma text embeddings, a linear-attention transformer."""

    def __init__(
        self,
        pipeline: SanaPipeline,
        size: tuple[int, int],
        max_prompt_length: int,
        complex_human_instruction: bool,
        device: torch.device,
        offload: bool,
    ):
        """Place the parts and freeze them.

        Args:
            pipeline: loaded, in the dtypes that shall be computed in.
            size: height and width of the pictures in pixels.
            max_prompt_length: text tokens kept of a prompt.
            complex_human_instruction: put the pipeline's own instruction before every prompt, as its call does.
            device: where to compute.
            offload: keep the text encoder and the autoencoder on the CPU while they are not in use.

        Raises:
            UserError: when the autoencoder cannot make pictures of this size.
        """
        self.pipeline, self.device = pipeline, device
        self.transformer = pipeline.transformer.requires_grad_(False).eval().to(device)
        self._vae = Visitor(pipeline.vae, device, stays=not offload)
        self._text_encoder = Visitor(pipeline.text_encoder, device, stays=not offload)
        self._max_prompt_length = max_prompt_length
        self._instruction = _default_instruction() if complex_human_instruction else None
        factor, channels = pipeline.vae_scale_factor, self.transformer.config.in_channels
        if any(edge % (factor * self.transformer.config.patch_size) for edge in size):
            raise UserError(
                f"policy.diffusers.inference_size: found {list(size)}; the autoencoder works in cells of "
                f"{factor * self.transformer.config.patch_size} pixels, so height and width must be multiples of that"
            )
        self.latent_shape: tuple[int, ...] = (channels, size[0] // factor, size[1] // factor)
        scheduler = pipeline.scheduler.config
        self.flow_shift = float(scheduler.get("flow_shift") or scheduler.get("shift") or 1.0)
        self._learned_sigma = self.transformer.config.out_channels == 2 * channels

    @torch.no_grad()
    def encode_prompts(self, prompts: list[str]) -> Cond:
        """Embed prompts, each distinct one once: B strings -> Cond of (B, L, D) and (B, L); B may be 0."""
        distinct = list(dict.fromkeys(prompts)) or [""]
        # The empty prompt, of guidance or of caption dropout, never carries the instruction.
        parts = [part for part in ([p for p in distinct if p], [p for p in distinct if not p]) if part]
        with self._text_encoder.here():
            cond = Cond.cat([self._encode(part, self._instruction if part[0] else None) for part in parts])
        place = {prompt: row for row, prompt in enumerate(p for part in parts for p in part)}
        return cond[torch.tensor([place[prompt] for prompt in prompts], dtype=torch.int64)]

    def _encode(self, prompts: list[str], instruction: list[str] | None) -> Cond:
        parts = []
        for start in range(0, len(prompts), PROMPTS_AT_ONCE):
            embeds, mask, _, _ = self.pipeline.encode_prompt(
                prompts[start : start + PROMPTS_AT_ONCE],
                do_classifier_free_guidance=False,
                device=self.device,
                max_sequence_length=self._max_prompt_length,
                complex_human_instruction=instruction,
            )
            parts.append(Cond(embeds, mask))
        return Cond.cat(parts)

    @torch.no_grad()
    def encode_media(self, media: Tensor, mini_batch: int) -> Tensor:
        """(B, 1, 3, H, W) in [0, 1] -> latents (B, C, H', W') float32, scaled by the autoencoder's scaling_factor."""
        with self._vae.here() as vae:
            parts = [
                vae.encode((2 * part[:, 0] - 1).to(self.device, vae.dtype)).latent for part in media.split(mini_batch)
            ]
            return torch.cat(parts).float() * vae.config.scaling_factor

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Latents (B, C, H', W') -> media (B, 1, 3, H, W) float32 in [0, 1]."""
        with self._vae.here() as vae:
            pixels = vae.decode((latents / vae.config.scaling_factor).to(vae.dtype)).sample
        return (pixels.float() / 2 + 0.5).clamp(0, 1)[:, None]

    def velocity(self, x_t: Tensor, sigma: Tensor, cond: Cond) -> Tensor:
        """Velocity at ``x_t`` (B, C, H', W') and ``sigma`` (B,), computed in the transformer's dtype."""
        dtype = self.transformer.dtype
        out = self.transformer(
            x_t.to(dtype),
            encoder_hidden_states=cond.embeds.to(dtype),
            encoder_attention_mask=cond.mask,
            timestep=sigma.float() * TIMESTEPS * self.transformer.config.timestep_scale,
            return_dict=False,
        )[0]
        if self._learned_sigma:
            out = out.chunk(2, dim=1)[0]
        return out.to(x_t.dtype)


def _default_instruction() -> list[str]:
    """The instruction that the pipeline's own call puts before a prompt."""
    return list(inspect.signature(SanaPipeline.__call__).parameters["complex_human_instruction"].default)
