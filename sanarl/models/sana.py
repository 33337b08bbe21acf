"""SANA through its diffusers pipelines, pictures and video in one class.

Xie et al., arXiv:2410.10629; SANA-1.5, arXiv:2501.18427; SANA-Video, arXiv:2509.24695.
"""

import inspect
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from diffusers import SanaPipeline, SanaVideoPipeline
from torch import Tensor

from sanarl.errors import UserError
from sanarl.models.fused import caption_mask
from sanarl.models.offload import Visitor
from sanarl.models.tiles import Thrift
from sanarl.models.vae import codec
from sanarl.types import Cond, unit

TIMESTEPS = 1000  # the transformer is conditioned on sigma in thousandths
PROMPTS_AT_ONCE = 64


class Sana:
    """Latents of the rank of their autoencoder, Gemma text embeddings, a linear-attention transformer."""

    def __init__(
        self,
        pipeline: SanaPipeline | SanaVideoPipeline,
        size: tuple[int, int],
        frames: int,
        max_prompt_length: int,
        complex_human_instruction: bool,
        motion_score: int | None,
        device: torch.device,
        offload: bool,
        vae_tiles: bool | Literal["auto"] = "auto",
    ):
        """Place the parts and freeze them.

        Args:
            pipeline: loaded, in the dtypes that shall be computed in.
            size: height and width of samples in pixels.
            frames: of a sample; 1 for pictures.
            max_prompt_length: text tokens kept of a prompt.
            complex_human_instruction: put the pipeline's own instruction before every prompt, as its call does.
            motion_score: appended to every prompt but the empty one as SANA-Video's training captions have it.
            device: where to compute.
            offload: keep the text encoder and the autoencoder on the CPU while they are not in use.
            vae_tiles: see :class:`sanarl.models.tiles.Thrift`.

        Raises:
            UserError: when the autoencoder or the transformer's patches do not fit this size.
        """
        self.pipeline, self.device = pipeline, device
        self.transformer = pipeline.transformer.requires_grad_(False).eval().to(device)
        self._vae = Visitor(pipeline.vae, device, stays=not offload)
        self._text_encoder = Visitor(pipeline.text_encoder, device, stays=not offload)
        self._max_prompt_length = max_prompt_length
        self._suffix = "" if motion_score is None else f" motion score: {motion_score}."
        self._instruction = _default_instruction(pipeline) if complex_human_instruction else None
        config = self.transformer.config
        self._codec, self._thrift = codec(pipeline.vae), Thrift(pipeline.vae, vae_tiles)
        self.latent_shape: tuple[int, ...] = self._codec.latent_shape(config.in_channels, frames, size)
        patch = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[-1]
        if any(cells % patch for cells in self.latent_shape[-2:]):
            raise UserError(
                f"policy.diffusers.inference_size: found {list(size)}; that is {list(self.latent_shape[-2:])} latent "
                f"cells, and the transformer takes them in patches of {patch}"
            )
        scheduler = pipeline.scheduler.config
        self.flow_shift = float(scheduler.get("flow_shift") or scheduler.get("shift") or 1.0)
        self._learned_sigma = config.out_channels == 2 * config.in_channels
        self._timestep_scale = config.get("timestep_scale", 1.0)
        self._decoded_at_once = 0  # fewer are filled up

    @torch.no_grad()
    def encode_prompts(self, prompts: list[str]) -> Cond:
        """Embed prompts, each distinct one once: B strings -> Cond of (B, L, D) and (B, L); B may be 0."""
        distinct = list(dict.fromkeys(prompts)) or [""]
        # The empty prompt, of guidance or of caption dropout, never carries the instruction.
        parts = [part for part in ([p for p in distinct if p], [p for p in distinct if not p]) if part]
        with self._text_encoder.here():
            cond = Cond.cat([self._encode(part, self._instruction if part[0] else None) for part in parts])
        place = {prompt: row for row, prompt in enumerate(p for part in parts for p in part)}
        rows = cond[torch.tensor([place[prompt] for prompt in prompts], dtype=torch.int64)]
        return replace(rows, texts=list(prompts))

    def _encode(self, prompts: list[str], instruction: list[str] | None) -> Cond:
        parts = []
        for start in range(0, len(prompts), PROMPTS_AT_ONCE):
            embeds, mask, _, _ = self.pipeline.encode_prompt(
                [p + self._suffix if p else p for p in prompts[start : start + PROMPTS_AT_ONCE]],
                do_classifier_free_guidance=False,
                device=self.device,
                max_sequence_length=self._max_prompt_length,
                complex_human_instruction=instruction,
            )
            parts.append(Cond(embeds, mask))
        return Cond.cat(parts)

    @torch.no_grad()
    def encode_media(self, media: Tensor, mini_batch: int) -> Tensor:
        """(B, F, 3, H, W) in [0, 1], or uint8 -> latents float32, in the scale that the transformer sees."""
        with self._vae.here() as vae:
            parts = [
                self._thrift(partial(self._codec.encode, vae), (2 * unit(part.to(self.device)) - 1).to(vae.dtype))
                for part in media.split(mini_batch)
            ]
        return torch.cat(parts).float()

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Latents -> media (B, F, 3, H, W) float32 in [0, 1]."""
        rows, batch = len(latents), max(self._decoded_at_once, len(latents))
        latents = latents if batch == rows else latents[torch.arange(batch, device=latents.device).clamp(max=rows - 1)]
        with self._vae.here() as vae:
            pixels = self._thrift(partial(self._codec.decode, vae), latents.to(vae.dtype))[:rows]
        return (pixels.float() / 2 + 0.5).clamp(0, 1)

    def compile_decoder(self, batch: int) -> None:
        """See FlowModel."""
        decoder = self._vae.module.decoder.to(memory_format=torch.channels_last)
        decoder.compile(dynamic=False)
        self._decoded_at_once = batch

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
