"""Sol-RL's families of presets: the one table that the files are made from, and the names they have there.

python -m sanarl.config.make_presets    (make presets) writes presets/MODEL-image-nft-FAMILY-REWARD.toml
"""

import re
from dataclasses import dataclass

from sanarl.config.recipes import RECIPES

REWARDS = ("pickscore", "clipscore", "hpsv2", "imagereward")
START = ("tiny-image-nft", f"sana-image-nft-diffusionnft-{REWARDS[0]}")
"""Presets to start with, on a laptop and on a GPU."""


@dataclass(frozen=True)
class Model:
    """What sets a base model apart."""

    theirs: str
    """Sol-RL's file and the beginning of its names."""
    about: str
    """In a line."""
    policy: tuple[str, ...]
    """Lines of [policy] that name it."""
    targets: tuple[str, ...]
    """Layers that get an adapter."""
    size: int
    prompt_length: int
    fraction: str
    """Share of the timesteps that are trained, with what that comes to."""
    sample: tuple[str, ...]
    """Lines of [policy.diffusers.sample] on solver and schedule."""
    eval_steps: int
    mini_batch: int
    clip: str
    quantised: tuple[str, ...]
    """Lines of [rollout.engine] for families that quantise by Sol-RL's rule."""
    fp8: tuple[str, ...]
    """The same for FP8, in which every large layer of the blocks is exact enough."""
    differs: tuple[str, ...]
    """What differs from Sol-RL for this model."""
    instead: str = ""
    """A line on another base model."""
    families: tuple[tuple[str, str], ...] = ()
    """Families that are something else there for this model, with what they are."""


_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
_JOINT = ("add_k_proj", "add_q_proj", "add_v_proj", "to_add_out", "to_k", "to_out.0", "to_q", "to_v")
_DPM2 = ("noise_level = 0.7", 'solver = "dpm2"')
_VAE = "The autoencoder decodes in bfloat16, there in float32 (rollout.engine.decode_dtype)."

MODELS: dict[str, Model] = {
    "sana": Model(
        theirs="sana",
        about="SANA 1.0 1.6B in LinearFFN form",
        policy=(
            'model_name_or_path = "hf://yitongl/SANA_LinearFFN/SANA_LinearFFN.pth"',
            'base_pipeline = "Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers"  # text encoder and autoencoder',
        ),
        targets=tuple(f"{attention}.{layer}" for attention in ("attn1", "attn2") for layer in _ATTENTION),
        size=1024,
        prompt_length=300,
        fraction="0.6  # 6 of 10",
        sample=('solver = "euler"', "flow_shift = 1.0  # noise levels are linspace(1, 0, 11)"),
        eval_steps=40,
        mini_batch=16,
        clip="1.0",
        quantised=(),
        fp8=(
            "min_dim = 0  # FP8 is exact enough for every layer of the blocks",
            'skip_modules = ["t_embedder", "t_block", "y_embedder", "x_embedder", "final_layer"]',
        ),
        differs=(
            "Query, key and value have an A each (there attn.qkv shares one), and so have the caption's key and value.",
        ),
        instead=(
            "# SANA-1.5 instead: --set policy.model_name_or_path=Efficient-Large-Model/SANA1.5_1.6B_1024px_diffusers\n"
        ),
        families=(
            ("naive_scaling", "There it is a compiled copy that samples; here that is the family compile."),
            ("compile", "There this is called naive_scaling."),
        ),
    ),
    "sd3": Model(
        theirs="sd3",
        about="SD3.5-L",
        policy=('model_name_or_path = "stabilityai/stable-diffusion-3.5-large"',),
        targets=tuple(f"attn.{layer}" for layer in _JOINT),
        size=1024,
        prompt_length=128,
        fraction="0.6  # 6 of 10",
        sample=_DPM2,
        eval_steps=40,
        mini_batch=4,
        clip="0.002",
        quantised=(
            'skip_modules = ["pos_embed", "context_embedder", "time_text_embed", "norm_out", "norm1", "ff_context"]',
            "min_dim = 2432",
        ),
        fp8=(
            "min_dim = 0  # FP8 is exact enough for every layer of the blocks but those of modulation",
            'skip_modules = ["pos_embed", "context_embedder", "time_text_embed", "norm_out", "norm1", "proj_out"]',
        ),
        differs=(
            "Noise levels are evenly spaced before the shift; there diffusers spaces them, the last of 10 at 0.009.",
            _VAE,
        ),
        instead="# SD3.5-M instead: --set policy.model_name_or_path=stabilityai/stable-diffusion-3.5-medium\n",
    ),
    "flux1": Model(
        theirs="flux1",
        about="FLUX.1-dev",
        policy=('model_name_or_path = "black-forest-labs/FLUX.1-dev"',),
        targets=_ATTENTION,
        size=512,
        prompt_length=128,
        fraction="0.4  # 4 of 10",
        sample=_DPM2,
        eval_steps=28,
        mini_batch=12,
        clip="1.0",
        quantised=(
            'skip_modules = ["x_embedder", "context_embedder", "time_text_embed", "norm_out"]',
            "min_dim = 1000",
        ),
        fp8=(
            "min_dim = 0  # FP8 is exact enough for every layer of the blocks but those of modulation",
            'skip_modules = ["x_embedder", "context_embedder", "time_text_embed", "norm"]',
        ),
        differs=(
            "The last layer stays in bf16; there it is quantised, and its rounding goes into the velocity as it is.",
            _VAE,
        ),
    ),
}
"""The beginning of presets' names -> the model."""

_NAMES = "|".join(model.theirs for model in MODELS.values())
_SPEC = re.compile(rf"(?:CONFIG_SPEC=)?(?:(?:.*/)?(?:{_NAMES})\.py:)?((?:{_NAMES})_([a-z0-9_]+)_([a-z0-9]+))")
_RECIPE = re.compile(rf"(?:(?:.*/)?nft\.py:)?sd3_({'|'.join(RECIPES)})")


@dataclass(frozen=True)
class Family:
    """What sets a family apart."""

    what: str
    """In a sentence."""
    candidates: int = 96
    mode: str = "peft"
    preview_mode: str | None = None
    """None: no preview."""
    theirs: bool = True
    """Whether Sol-RL has it."""
    engine: tuple[str, ...] = ()
    """Further lines of [rollout.engine], and of [rollout.preview] after a line with its name."""
    differs: tuple[str, ...] = ()
    """What differs from Sol-RL, beside what differs in all families."""


_COMPILED = ("decode_compile = true",)
_NVFP4 = "NVFP4 is TransformerEngine's NVFP4BlockScaling; this path has never been run by its authors"

FAMILIES: dict[str, Family] = {
    "diffusionnft": Family("the baseline: 24 samples a prompt, all of them train", candidates=24),
    "naive_scaling": Family(
        "brute force: 96 samples a prompt by the model that trains, 24 train",
    ),
    "compile": Family(
        "brute force made fast: 96 samples a prompt by a compiled bf16 copy, 24 train",
        mode="compile",
        engine=_COMPILED,
    ),
    "naive_quant": Family(
        "brute force in fewer bits: 96 samples a prompt by an NVFP4 copy, 24 train",
        mode="compile_nvfp4",
        engine=_COMPILED,
        differs=(f"{_NVFP4}.",),
    ),
    "sol_rl": Family(
        "96 previews of 6 steps by an NVFP4 copy, 24 drawn again in 10 steps by a compiled bf16 copy",
        mode="compile",
        preview_mode="compile_nvfp4",
        engine=_COMPILED,
        differs=(f"{_NVFP4}.",),
    ),
    "sol_rl-fp8": Family(
        "sol_rl for Hopper and Ada: previews in FP8, at half size",
        mode="compile",
        preview_mode="compile_fp8",
        theirs=False,
        engine=_COMPILED,
        differs=(
            "Sol-RL has no FP8: cards without FP4 units, with all linear layers of the blocks in 8 bits instead.",
        ),
    ),
}
"""Family -> what it is."""


def names() -> list[str]:
    """Of all presets of the table, without .toml."""
    found = [f"{model}-image-nft-{family}-{reward}" for model in MODELS for family in FAMILIES for reward in REWARDS]
    return [*found, *(f"sd3-image-nft-{recipe}" for recipe in RECIPES)]


def resolve(spec: str) -> str | None:
    """The preset for a name that Sol-RL or DiffusionNFT has; None for others.

    ``MODEL_FAMILY_REWARD`` or Sol-RL's whole CONFIG_SPEC; ``sd3_RECIPE`` or ``config/nft.py:sd3_RECIPE``.
    """
    recipe = _RECIPE.fullmatch(spec)
    if recipe is not None:
        return f"sd3-image-nft-{recipe[1]}"
    match = _SPEC.fullmatch(spec)
    if match is None:
        return None
    name = f"{match[1].partition('_')[0]}-image-nft-{match[2]}-{match[3]}"
    return name if name in names() else None


TINY = {
    "naive_scaling": (
        "brute force: 24 samples a prompt by the model that trains, 8 train",
        ('select = "best_worst"',),
        "",
    ),
    "sol_rl": (
        "24 previews of 6 steps in emulated NVFP4, 8 drawn again in 10 steps. Emulated formats are for studies,\n"
        "# never fast: --set rollout.preview.mode=peft previews with the model that trains",
        (),
        """
[rollout.engine]
min_dim = 96  # as wide as this model: the layers that are quantised at full size

[rollout.preview]
num_steps = 6
mode = "emulated_nvfp4"
select = "best_worst"
n_regenerate = 8
""",
    ),
}
"""Families of tiny presets: what they are, lines of [rollout], further tables."""
