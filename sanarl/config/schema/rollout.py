"""[rollout]: how many samples a prompt gets, which of them train, and what samples them."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sanarl.config.schema.base import Count, Table, Text, WholeNumber

Select = Literal["best_worst", "random", "mean_deviation", "extremes_random"]
Mode = Literal["peft", "compile", "compile_fp8", "compile_nvfp4", "emulated_fp8", "emulated_nvfp4"]
SKIPPED = (
    "t_embedder",
    "t_block",
    "cfg_embedder",
    "y_embedder",
    "x_embedder",
    "final_layer",
    "logvar_linear",
    "attn.qkv",
)


def _half(value: float) -> float:
    if value not in (0.5, 1.0):
        raise ValueError("accepted 1.0 or 0.5")
    return value


class Engine(Table):
    """What samples rollouts. DiffusionNFT only; Flow-GRPO samples with the model that is trained."""

    mode: Mode = "peft"
    """"peft": the model that is trained. "compile": a bf16 copy with compiled blocks; "compile_fp8", "compile_nvfp4":
    its large layers in FP8 (compute capability 8.9 and newer) or NVFP4 (10.0 and newer, with TransformerEngine).
    "emulated_fp8", "emulated_nvfp4": the same rounding anywhere, for accuracy studies."""
    compile_mode: Literal["default", "max-autotune-no-cudagraphs"] = "default"
    """torch.compile's mode; the longer one searches for minutes and finds the same matrix products here."""
    skip_modules: tuple[Text, ...] = SKIPPED
    """Layers that stay in bf16: those whose name (SANA: in NVlabs/Sana; else in diffusers) contains one of these."""
    min_dim: WholeNumber = 2240
    """Layers that stay in bf16: those of which no side is larger (SANA: in NVlabs/Sana's fused shapes)."""
    decode_dtype: Literal["bfloat16", "float32"] | None = None
    """Of the autoencoder; unset: policy.diffusers.dtype."""
    decode_compile: bool = False
    """Compile the autoencoder's decoder, channels last. For pictures."""


class Preview(Table):
    """A first look at every candidate, in few steps or bits; the most telling are drawn again in full."""

    num_steps: Annotated[int, Field(ge=0, le=1000)] = 0
    """Solver steps of a preview; 0: none."""
    mode: Mode = "peft"
    """What samples previews; see rollout.engine.mode."""
    select: Select = "best_worst"
    """Which candidates are drawn again, by the rewards of their previews; see rollout.select."""
    n_regenerate: Count | None = None
    """How many of a prompt; unset: rollout.n_generation."""
    decode_scale: Annotated[float, AfterValidator(_half)] = 1.0
    """Side of the pictures that previews are scored by, of the full one: 1.0 or 0.5."""


class Rollout(Table):
    """Samples that are drawn for training."""

    n_generation: Count = 16
    """Samples of a prompt that train: one group."""
    n_candidates: Count | None = None
    """Samples of a prompt that are drawn, of which rollout.select keeps n_generation; unset: n_generation."""
    select: Select = "best_worst"
    """Which samples train, by their rewards: "best_worst" half from either end; "random"; "mean_deviation" the farthest
    from the prompt's mean; "extremes_random" the best, the worst and others at random."""
    n_generation_mini_batch: Count | None = None
    """Samples drawn at once; changes memory, never a result. Unset: a whole group."""
    engine: Engine = Engine()
    preview: Preview = Preview()
