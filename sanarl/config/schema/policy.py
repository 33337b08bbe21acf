"""[policy]: the model, its adapter, how it is sampled, and how many replicas the numbers are written for."""

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sanarl.config.schema.base import (
    Accepts,
    Count,
    Fraction,
    Frames,
    NotNegative,
    Positive,
    Table,
    Text,
)

NATIVE_MODULES: dict[str, tuple[str, ...]] = {
    "attn.qkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
    "attn.proj": ("attn1.to_out.0",),
    "cross_attn.q_linear": ("attn2.to_q",),
    "cross_attn.kv_linear": ("attn2.to_k", "attn2.to_v"),
    "cross_attn.proj": ("attn2.to_out.0",),
}
"""Native SANA layers -> the diffusers layers that hold the same weights (a split layer gives each part its own A)."""


def _modules(value: tuple[str, ...] | str) -> tuple[str, ...] | str:
    if isinstance(value, str):
        try:
            re.compile(value)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"not a regular expression ({error})") from error
        return value
    return tuple(dict.fromkeys(_expand(value)))


def _expand(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        yield from NATIVE_MODULES.get(name, (name,))


TargetModules = Annotated[
    Annotated[tuple[Text, ...], Field(min_length=1)] | Text,
    AfterValidator(_modules),
    Accepts("a list of layer names, or one regular expression over full layer names"),
]


class Lora(Table):
    """A low-rank adapter; without this table the whole transformer is trained."""

    lora_names: tuple[Text, ...] = ("default",)
    """Value sets: ["default"] for SFT; reinforcement learning also needs "old", the policy that rolls out."""
    r: Annotated[int, Field(ge=1, le=4096)] = 8
    """Rank."""
    lora_alpha: Positive = 8.0
    """The adapter's output is scaled by lora_alpha / r (by lora_alpha / sqrt(r) with use_rslora)."""
    lora_path: Text | None = None
    """Start from this saved adapter, which is then also the reference of the KL term."""
    target_modules: TargetModules
    """Layers that get an adapter. Native SANA names (attn.qkv, cross_attn.kv_linear ...) are understood in a list."""
    use_rslora: bool = False
    """Scale by lora_alpha / sqrt(r)."""
    init_lora_weights: bool | Literal["gaussian"] = True
    """true: A Kaiming-uniform, B zero; "gaussian": A normal, B zero; false: both random."""
    r_pattern: dict[Text, Annotated[int, Field(ge=1, le=4096)]] = Field(default={})
    """Ranks of single layers: name or regular expression -> rank."""
    alpha_pattern: dict[Text, Positive] = Field(default={})
    """Alphas of single layers: name or regular expression -> alpha."""


def _flow_is_euler(value: str) -> str:
    return "euler" if value == "flow" else value


def _none_is_uniform(value: str) -> str:
    return "uniform" if value == "none" else value


class Sample(Table):
    """How media are drawn from the model."""

    num_steps: Annotated[int, Field(ge=1, le=1000)] = 40
    """Solver steps of a rollout; of a preview picture in SFT."""
    eval_num_steps: Annotated[int, Field(ge=1, le=1000)] = 40
    """Solver steps of an evaluation in reinforcement learning."""
    guidance_scale: Annotated[float, Field(ge=1, le=100)] = 4.5
    """Classifier-free guidance; 1 is none. FLUX.1-dev takes it as an input, in training as in sampling."""
    global_std: bool = True
    """Divide advantages by the standard deviation of the whole rollout; false: of each group."""
    noise_level: NotNegative = 1.0
    """Flow-GRPO: noise of the stochastic steps: a of the SDE's diffusion a sqrt(sigma / (1 - sigma)), or eta of CPS,
    which is at most 1. At least 1e-4."""
    deterministic_sampling: bool | None = None
    """Follow the ODE. Unset: what the algorithm needs, false for flow_grpo and true for the others."""
    sde_type: Literal["sde", "cps"] = "sde"
    """Flow-GRPO: the stochastic step: the SDE, or coefficients-preserving sampling."""
    sde_window_size: Annotated[int, Field(ge=0, le=999)] = 0
    """Flow-GRPO: stochastic steps of a sample, in one window (Flow-GRPO-Fast: 1 to 3); 0: every step of the range."""
    sde_window_range: tuple[Annotated[int, Field(ge=0, le=998)], Annotated[int, Field(ge=1, le=999)]] | None = None
    """Flow-GRPO: first step that a window may hold, and the one after the last; each group's window is drawn anew.
    Unset: every step but the last."""
    same_latent: bool = False
    """Flow-GRPO: the samples of a prompt start from the same noise, so that only stochastic steps tell them apart."""
    solver: Annotated[Literal["euler", "flow", "ddim", "dpm1", "dpm2"], AfterValidator(_flow_is_euler)] = "euler"
    """Step rule; "flow" is another name of "euler", and "ddim" and "dpm1" are the same step on a rectified flow;
    "dpm2" is of second order."""
    flow_shift: Annotated[float, Field(gt=0, le=100)] | None = None
    """Shift of the sampling schedule; unset: what the model's scheduler says."""


class Diffusers(Table):
    """The diffusion side: dtypes, text, timesteps, sizes."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the parts that are never trained: text encoder and VAE."""
    is_video: bool = False
    """The model makes video."""
    max_prompt_length: Annotated[int, Field(ge=1, le=4096)] = 300
    """Text tokens; longer prompts are cut."""
    complex_human_instruction: bool = False
    """Put the pipeline's own instruction before every prompt, as diffusers does by default."""
    weighting_scheme: Annotated[
        Literal["logit_normal", "mode", "uniform", "none"], AfterValidator(_none_is_uniform)
    ] = "logit_normal"
    """SFT: density of the training timesteps, as in diffusers; "none" is "uniform"."""
    logit_mean: Annotated[float, Field(ge=-20, le=20)] = 0.0
    """SFT: mean of the logit-normal density."""
    logit_std: Annotated[float, Field(gt=0, le=20)] = 1.0
    """SFT: standard deviation of the logit-normal density."""
    train_flow_shift: Annotated[float, Field(gt=0, le=100)] = 3.0
    """SFT: shift of the training timesteps; 1 is none."""
    caption_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """SFT: share of samples trained with an empty prompt."""
    offload: bool = True
    """Keep text encoder, VAE and the reward models of this process off the accelerator while they are not at work."""
    vae_tiles: bool | Literal["auto"] = "auto"
    """Let the VAE work on overlapping tiles of 256 pixels instead of whole media, with small differences near seams;
    "auto": whole, and in tiles from when memory runs out for a single sample."""
    inference_size: tuple[
        Annotated[int, Field(ge=32, le=8192, multiple_of=32)], Annotated[int, Field(ge=32, le=8192, multiple_of=32)]
    ] = (1024, 1024)
    """Height and width in pixels."""
    inference_frames: Frames = 41
    """Video: frames of a sample."""
    train_frames: Frames = 41
    """Video: frames of a training clip."""
    fps: Annotated[float, Field(gt=0, le=240)] = 16.0
    """Video: frames a second of clips that are read, by their time stamps, and written."""
    image_to_video: bool = False
    """Video, SFT: clips start from a picture, as SanaImageToVideoPipeline's do. Training gives the first frame of each
    clip and learns the others; previews start from the first frames of the held-out clips."""
    motion_score: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Appended to every prompt as " motion score: N.", as SANA-Video was trained with; unset: nothing is."""
    timesteps_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Reinforcement learning: share of a rollout's timesteps that is trained: max(1, floor(T * fraction + 1e-9)) of T;
    Flow-GRPO: of the stochastic steps, at most that many."""
    nft_beta: Annotated[float, Field(gt=0, le=10)] = 1.0
    """DiffusionNFT: how far the implicit positive and negative policies lie from the old one."""
    weight_copy_decay_type: Annotated[int, Field(ge=0, le=3)] = 0
    """DiffusionNFT and AWM: decay of old := decay * old + (1 - decay) * learner at update i: 0 none;
    1 min(0.001 i, 0.5); 2 flat 75, then 0.0075 an update up to 0.999; 3 linear to a value at an update."""
    weight_copy_decay_value: Fraction | None = None
    """The decay that type 3 reaches."""
    weight_copy_decay_steps: Count | None = None
    """The update at which type 3 reaches it."""
    sample: Sample = Sample()


class Parallelism(Table):
    """The sizes that the batch numbers are written for. Fewer GPUs give the same numbers and longer steps."""

    n_init_replicas: Count = 1
    """Replicas."""
    dp_shard_size: Count = 1
    """Data-parallel GPUs of a replica that share the weights of full fine-tuning; adapters leave the base whole.
    With other numbers of ranks the smallest divisor from here up shares, or all do."""
    dp_replicate_size: Count = 1
    """Data-parallel copies within a replica."""


class Policy(Table):
    """The model that is trained."""

    model_name_or_path: Text
    """A diffusers pipeline: hub id or local folder; "tiny-image" and "tiny-video" are the small models inside this
    package. Or a .pth with NVlabs/Sana's own names, stock or LinearFFN: a file, or hf://owner/repo/file.pth."""
    is_diffusers: Literal[True]
    """Must be true: tells diffusion presets from those for language models."""
    model_revision: Text | None = None
    """Branch, tag or commit of a hub id; folders and the models of this package have none."""
    base_pipeline: Text | None = None
    """The diffusers pipeline that gives text encoder, autoencoder and scheduler to a .pth, which has none."""
    native_config: Text | None = None
    """NVlabs/Sana's YAML of a .pth; what it says must be what the weights are."""
    model_gradient_checkpointing: bool | Literal["selective"] = True
    """Compute activations again in the backward pass instead of keeping them; "selective": of every second block."""
    memory_plan: Literal["as_written", "auto"] = "as_written"
    """"auto" chooses checkpointing (off, selective, full) and mini_batch for the memory of the card, whatever is
    written for them; the samples of an optimiser step stay, so results change by rounding alone."""
    lora: Lora | None = None
    diffusers: Diffusers = Diffusers()
    parallelism: Parallelism = Parallelism()
