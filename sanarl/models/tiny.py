"""The embedded default: a SANA small enough for one CPU core, of the classes that the large ones use.

``tiny-image`` draws the shapes world (:mod:`sanarl.shapes`) at 64x64; its weights lie in the package and
``recipes/tiny_image.py`` makes them again.
``tiny-video`` is described in :mod:`sanarl.models.tiny_video`. :func:`random_pipeline` and
:func:`random_video_pipeline` are smaller still and untrained: for tests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

import torch
from diffusers import (
    AutoencoderDC,
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    SanaPipeline,
    SanaTransformer2DModel,
    SanaVideoPipeline,
    SanaVideoTransformer3DModel,
)
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import Gemma2Config, Gemma2Model, GemmaTokenizer

from sanarl.errors import UserError
from sanarl.shapes.captions import Captions, all_prompts

NAMES = {"tiny-image": SanaPipeline, "tiny-video": SanaVideoPipeline}
"""Embedded models that :func:`load_pipeline` knows, and their pipelines."""

IMAGE_SIZE = 64
"""Side of the pictures that ``tiny-image`` was trained on."""

MAX_PROMPT_TOKENS = 12
"""``max_sequence_length`` that every caption fits in: the longest is <bos> and eight words."""

_SPACE = "\u2581"


@cache
def _vocabulary(captions: tuple[str, ...]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Byte-pair encoding of the captions, trained until every word of the grammar is one token."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{i:02X}>" for i in range(256))]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(_SPACE, behavior="merged_with_next")
    alphabet = [*map(chr, range(33, 127)), _SPACE]
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=special, show_progress=False, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(captions, trainer)
    bpe = json.loads(tokenizer.to_str())["model"]
    return bpe["vocab"], [tuple(m if isinstance(m, list) else m.split(" ")) for m in bpe["merges"]]


def build_tokenizer(captions: Captions | None = None) -> GemmaTokenizer:
    """A GemmaTokenizer with one token a word of the captions, and bytes for everything else. Needs no network.

    Args:
        captions: By kind, as ``all_prompts`` returns them; those of the shapes world's pictures unless given.
    """
    vocab, merges = _vocabulary(tuple(p for prompts in (captions or all_prompts()).values() for p in prompts))
    return GemmaTokenizer(vocab=dict(vocab), merges=list(merges), add_bos_token=True, padding_side="right")


@dataclass(frozen=True)
class Sizes:
    """Widths and depths of an embedded pipeline; the autoencoder always halves a side three times."""

    text_width: int
    text_layers: int
    text_heads: int
    latent_channels: int
    vae_widths: tuple[int, int, int, int]
    vae_head_dim: int
    width: int
    layers: int
    heads: int
    mlp_ratio: float


TINY_IMAGE = Sizes(
    text_width=64,
    text_layers=2,
    text_heads=4,
    latent_channels=8,
    vae_widths=(16, 32, 64, 64),
    vae_head_dim=16,
    width=96,
    layers=4,
    heads=4,
    mlp_ratio=2.5,
)
"""The packaged model: 0.60 M parameters in the autoencoder, 0.70 M in the transformer, 0.1 M in the text encoder."""

SMALLEST = Sizes(
    text_width=16,
    text_layers=1,
    text_heads=2,
    latent_channels=4,
    vae_widths=(4, 4, 8, 8),
    vae_head_dim=4,
    width=16,
    layers=2,
    heads=2,
    mlp_ratio=2.0,
)
"""For unit tests, which must be quick and need no sense in the pictures."""


def build_text_encoder(width: int, layers: int, heads: int, vocab_size: int) -> Gemma2Model:
    """Gemma 2 whose embeddings stand out.

    Gemma 2 multiplies embeddings by sqrt(width) and normalises what each layer adds to RMS 1: with the usual initial
    standard deviation of 0.02 a token's identity would drown, so it is 1 / sqrt(width) here. In training mode, with
    weights from torch's global random state.
    """
    config = Gemma2Config(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=width // heads,
        query_pre_attn_scalar=width // heads,
        max_position_embeddings=512,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
        attn_implementation="eager",
    )
    encoder = Gemma2Model(config)
    with torch.no_grad():
        encoder.embed_tokens.weight.normal_(0, width**-0.5)
        encoder.embed_tokens.weight[0] = 0
    return encoder


def _text_encoder(sizes: Sizes, vocab_size: int) -> Gemma2Model:
    return build_text_encoder(sizes.text_width, sizes.text_layers, sizes.text_heads, vocab_size).eval()


def _autoencoder(sizes: Sizes) -> AutoencoderDC:
    """Deep-compression autoencoder, 8x down a side.

    The first stage has no layers of its own, as in the published f64 and f128 models: the first convolution halves the
    picture already, which makes training about five times cheaper.
    """
    blocks = ("ResBlock", "ResBlock", "ResBlock", "EfficientViTBlock")
    return AutoencoderDC(
        in_channels=3,
        latent_channels=sizes.latent_channels,
        attention_head_dim=sizes.vae_head_dim,
        encoder_block_types=blocks,
        decoder_block_types=blocks,
        encoder_block_out_channels=sizes.vae_widths,
        decoder_block_out_channels=sizes.vae_widths,
        encoder_layers_per_block=(0, 1, 1, 1),
        decoder_layers_per_block=(0, 1, 1, 1),
        encoder_qkv_multiscales=((), (), (), (5,)),
        decoder_qkv_multiscales=((), (), (), (5,)),
        scaling_factor=1.0,
    )


def _transformer(sizes: Sizes, *, learned_sigma: bool, timestep_scale: float) -> SanaTransformer2DModel:
    head_dim = sizes.width // sizes.heads
    return SanaTransformer2DModel(
        in_channels=sizes.latent_channels,
        out_channels=sizes.latent_channels * (2 if learned_sigma else 1),
        num_attention_heads=sizes.heads,
        attention_head_dim=head_dim,
        num_layers=sizes.layers,
        num_cross_attention_heads=sizes.heads,
        cross_attention_head_dim=head_dim,
        cross_attention_dim=sizes.width,
        caption_channels=sizes.text_width,
        sample_size=IMAGE_SIZE // 8,
        patch_size=1,
        mlp_ratio=sizes.mlp_ratio,
        interpolation_scale=1.0,
        timestep_scale=timestep_scale,
    )


def _assemble(
    sizes: Sizes, seed: int, *, flow_shift: float = 1.0, learned_sigma: bool = False, timestep_scale: float = 1.0
) -> SanaPipeline:
    tokenizer = build_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pipeline = SanaPipeline(
            tokenizer=tokenizer,
            text_encoder=_text_encoder(sizes, len(tokenizer)),
            vae=_autoencoder(sizes).eval(),
            transformer=_transformer(sizes, learned_sigma=learned_sigma, timestep_scale=timestep_scale).eval(),
            scheduler=FlowMatchEulerDiscreteScheduler(shift=flow_shift),
        )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def build_pipeline(seed: int) -> SanaPipeline:
    """A pipeline of exactly the packaged shape with random weights, float32, in eval mode.

    Equal seeds give equal weights; torch's global random state is left as it was.
    """
    return _assemble(TINY_IMAGE, seed)


def random_pipeline(
    seed: int = 0, *, flow_shift: float = 1.0, learned_sigma: bool = False, timestep_scale: float = 1.0
) -> SanaPipeline:
    """The smallest pipeline of the real classes, untrained, float32, in eval mode: for tests.

    Args:
        seed: Equal seeds give equal weights; torch's global random state is left as it was.
        flow_shift: ``shift`` of the scheduler.
        learned_sigma: Let the transformer return twice the latent channels, of which the second half is not velocity.
        timestep_scale: Factor on the timestep, as the transformer's configuration states it.
    """
    return _assemble(SMALLEST, seed, flow_shift=flow_shift, learned_sigma=learned_sigma, timestep_scale=timestep_scale)


def random_video_pipeline(seed: int = 0, *, flow_shift: float = 1.0, learned_sigma: bool = False) -> SanaVideoPipeline:
    """The smallest video pipeline of the real classes, untrained, float32, in eval mode: for tests.

    The autoencoder is Wan's: 4x down in time, 8x a side, latents normalised with a mean and deviation a channel.

    Args:
        seed: Equal seeds give equal weights; torch's global random state is left as it was.
        flow_shift: ``shift`` of the scheduler.
        learned_sigma: Let the transformer return twice the latent channels, of which the second half is not velocity.
    """
    tokenizer, channels = build_tokenizer(), 4
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vae = AutoencoderKLWan(
            base_dim=4,
            z_dim=channels,
            dim_mult=[1, 1, 1, 1],
            num_res_blocks=1,
            latents_mean=[0.1, -0.2, 0.3, 0.0],
            latents_std=[0.5, 1.0, 1.5, 2.0],
        )
        transformer = SanaVideoTransformer3DModel(
            in_channels=channels,
            out_channels=channels * (2 if learned_sigma else 1),
            num_attention_heads=2,
            attention_head_dim=12,
            num_layers=2,
            num_cross_attention_heads=2,
            cross_attention_head_dim=12,
            cross_attention_dim=24,
            caption_channels=SMALLEST.text_width,
            sample_size=8,
            patch_size=(1, 2, 2),
        )
        pipeline = SanaVideoPipeline(
            tokenizer=tokenizer,
            text_encoder=_text_encoder(SMALLEST, len(tokenizer)),
            vae=vae.eval(),
            transformer=transformer.eval(),
            scheduler=FlowMatchEulerDiscreteScheduler(shift=flow_shift),
        )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def load_pipeline(
    name: str = "tiny-image", dtype: torch.dtype | dict[str, torch.dtype] = torch.float32
) -> SanaPipeline | SanaVideoPipeline:
    """Load an embedded pipeline from the package; no network is used.

    Args:
        name: ``tiny-image`` or ``tiny-video``.
        dtype: Type of the weights, which are stored as float16; or one for each part, with a ``default``.

    Raises:
        UserError: There is no embedded model of that name, or its weights are not in this installation.
    """
    if name not in NAMES:
        raise UserError(f"no embedded model is named {name!r}; accepted: {', '.join(NAMES)}")
    with resources.as_file(resources.files("sanarl") / "assets" / name) as folder:
        if not (folder / "model_index.json").is_file():
            raise UserError(
                f"{name}: found no model in {folder}; this installation lacks its weights: install the package again, "
                f"or make them with recipes/{name.replace('-', '_')}.py of the source"
            )
        pipeline = NAMES[name].from_pretrained(folder, local_files_only=True, dtype=dtype)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
