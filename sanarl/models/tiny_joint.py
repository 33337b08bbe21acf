"""The smallest pipelines of Stable Diffusion 3.5's and FLUX.1's real classes, untrained: for tests and trials.

Everything is random but the tokenizers, which spell prompts letter by letter.
"""

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5TokenizerFast,
)

LETTERS = [chr(code) for code in range(33, 127)]
START, END, WORD_END, SPACE = "<|startoftext|>", "<|endoftext|>", "</w>", "\u2581"
CHANNELS = 4
"""Of latents."""
T5_WIDTH = 24
KINDS = ("text_encoder", "tokenizer")


def clip_tokenizer() -> CLIPTokenizer:
    """A CLIPTokenizer of 77 tokens; needs no network."""
    tokens = [*LETTERS, *(f"{letter}{WORD_END}" for letter in LETTERS), START, END]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77)


def t5_tokenizer() -> T5TokenizerFast:
    """A T5TokenizerFast; needs no network."""
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), (SPACE, -2.0)]
    return T5TokenizerFast(vocab=[*special, *((letter, -3.0) for letter in LETTERS)], extra_ids=0)


def clip_config(tokenizer: CLIPTokenizer, width: int, layers: int, heads: int) -> CLIPTextConfig:
    """Of a text encoder that projects to its own width."""
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        projection_dim=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=77,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def t5_config(tokenizer: T5TokenizerFast, width: int, layers: int, heads: int, hidden: int) -> T5Config:
    """Of an encoder of T5 1.1."""
    return T5Config(
        vocab_size=len(tokenizer),
        d_model=width,
        d_kv=width // heads,
        d_ff=hidden,
        num_layers=layers,
        num_heads=heads,
        feed_forward_proj="gated-gelu",
    )


def _autoencoder() -> AutoencoderKL:
    """8x down a side, with a shift and a scale."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(4, 4, 4, 4),
        layers_per_block=1,
        latent_channels=CHANNELS,
        norm_num_groups=2,
        scaling_factor=1.5305,
        shift_factor=0.0609,
        use_quant_conv=False,
        use_post_quant_conv=False,
    ).eval()


def random_sd3_pipeline(
    seed: int = 0, *, encoders: tuple[bool, bool, bool] = (True, True, True), flow_shift: float = 3.0
) -> StableDiffusion3Pipeline:
    """Three text encoders, one of two blocks with two attentions, as SD3.5-M has them; float32, in eval mode.

    Args:
        seed: equal seeds give equal weights; torch's global random state is left as it was.
        encoders: which of CLIP-L, CLIP-G and T5 there are.
        flow_shift: ``shift`` of the scheduler.
    """
    clip, t5, widths = clip_tokenizer(), t5_tokenizer(), (8, 12)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        clips = [CLIPTextModelWithProjection(clip_config(clip, width, 2, 2)).eval() for width in widths]
        text_encoder_3 = T5EncoderModel(t5_config(t5, T5_WIDTH, 1, 2, 2 * T5_WIDTH)).eval()
        transformer = SD3Transformer2DModel(
            sample_size=8,
            patch_size=2,
            in_channels=CHANNELS,
            out_channels=CHANNELS,
            num_layers=2,
            attention_head_dim=8,
            num_attention_heads=2,
            joint_attention_dim=T5_WIDTH,
            caption_projection_dim=16,
            pooled_projection_dim=sum(widths),
            pos_embed_max_size=8,
            dual_attention_layers=(0,),
            qk_norm="rms_norm",
        ).eval()
        vae = _autoencoder()
    parts = {
        "text_encoder": clips[0],
        "text_encoder_2": clips[1],
        "text_encoder_3": text_encoder_3,
        "tokenizer": clip,
        "tokenizer_2": clip,
        "tokenizer_3": t5,
    }
    names = ("", "_2", "_3")
    absent = {f"{kind}{name}": None for name, there in zip(names, encoders, strict=True) if not there for kind in KINDS}
    scheduler = FlowMatchEulerDiscreteScheduler(shift=flow_shift)
    pipeline = StableDiffusion3Pipeline(transformer=transformer, vae=vae, scheduler=scheduler, **(parts | absent))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def random_flux_pipeline(seed: int = 0, *, guidance_embeds: bool = True) -> FluxPipeline:
    """One block of each kind, guidance as an input, a shift that grows with the size; float32, in eval mode.

    Args:
        seed: equal seeds give equal weights; torch's global random state is left as it was.
        guidance_embeds: whether guidance is an input, as in FLUX.1-dev.
    """
    clip, t5 = clip_tokenizer(), t5_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        text_encoder = CLIPTextModel(clip_config(clip, 8, 1, 2)).eval()
        text_encoder_2 = T5EncoderModel(t5_config(t5, T5_WIDTH, 1, 2, 2 * T5_WIDTH)).eval()
        transformer = FluxTransformer2DModel(
            patch_size=1,
            in_channels=4 * CHANNELS,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=8,
            num_attention_heads=2,
            joint_attention_dim=T5_WIDTH,
            pooled_projection_dim=8,
            guidance_embeds=guidance_embeds,
            axes_dims_rope=(2, 2, 4),
        ).eval()
        vae = _autoencoder()
    pipeline = FluxPipeline(
        text_encoder=text_encoder,
        tokenizer=clip,
        text_encoder_2=text_encoder_2,
        tokenizer_2=t5,
        transformer=transformer,
        vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
