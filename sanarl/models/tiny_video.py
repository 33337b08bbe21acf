"""The embedded default for video: a SANA-Video small enough for one CPU core, of the classes that the large ones use.

It draws clips of the shapes world in motion (:mod:`sanarl.shapes.motion`), 9 frames of 64x64 pixels;
``recipes/tiny_video.py`` makes its weights.
"""

from __future__ import annotations

import torch
from diffusers import (
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    SanaVideoPipeline,
    SanaVideoTransformer3DModel,
)

from sanarl.models.tiny import build_text_encoder, build_tokenizer
from sanarl.shapes.motion import all_prompts

MAX_PROMPT_TOKENS = 16
"""``max_sequence_length`` that every caption fits in: the longest is <bos> and eleven words."""

LATENT_CHANNELS = 12

_TEXT_WIDTH, _WIDTH, _HEADS = 64, 144, 6


def build_video_pipeline(seed: int) -> SanaVideoPipeline:
    """A pipeline of exactly the shape that the recipe trains, with random weights, float32, in eval mode.

    1.17 M parameters in the autoencoder (4x down in time, 8x a side), 1.80 M in the transformer (width 144, 4 layers,
    patches of 2x2 cells), 0.1 M in the text encoder.

    Args:
        seed: Equal seeds give equal weights; torch's global random state is left as it was.
    """
    tokenizer = build_tokenizer(all_prompts())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pipeline = SanaVideoPipeline(
            tokenizer=tokenizer,
            text_encoder=build_text_encoder(_TEXT_WIDTH, 2, 4, len(tokenizer)).eval(),
            vae=_autoencoder().eval(),
            transformer=_transformer().eval(),
            scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
        )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _autoencoder() -> AutoencoderKLWan:
    """Wan's autoencoder.

    Pictures are folded into patches of 2x2 before the first convolution, as in Wan 2.2: nothing is computed at full
    resolution, which makes it several times cheaper, and two stages are left for the 4x in time.
    """
    return AutoencoderKLWan(
        base_dim=16,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 2, 3],
        num_res_blocks=1,
        temperal_downsample=[True, True],
        latents_mean=[0.0] * LATENT_CHANNELS,
        latents_std=[1.0] * LATENT_CHANNELS,
        in_channels=12,
        out_channels=12,
        patch_size=2,
        scale_factor_temporal=4,
        scale_factor_spatial=8,
    )


def _transformer() -> SanaVideoTransformer3DModel:
    head_dim = _WIDTH // _HEADS  # a multiple of 6: rotary positions share it out among time, height and width
    return SanaVideoTransformer3DModel(
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_attention_heads=_HEADS,
        attention_head_dim=head_dim,
        num_layers=4,
        num_cross_attention_heads=_HEADS,
        cross_attention_head_dim=head_dim,
        cross_attention_dim=_WIDTH,
        caption_channels=_TEXT_WIDTH,
        sample_size=4,
        patch_size=(1, 2, 2),
        mlp_ratio=2.5,
    )
