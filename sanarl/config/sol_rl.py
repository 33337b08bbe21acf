"""Sol-RL's families of presets for SANA: the one table that the files are made from, and the names they have there.

python -m sanarl.config.sol_rl    (make presets) writes presets/sana-image-nft-FAMILY-REWARD.toml
"""

import re
from dataclasses import dataclass

REWARDS = ("pickscore", "clipscore", "hpsv2", "imagereward")
START = ("tiny-image-nft", f"sana-image-nft-diffusionnft-{REWARDS[0]}")
"""Presets to start with, on a laptop and on a GPU."""
_SPEC = re.compile(r"(?:CONFIG_SPEC=)?(?:(?:.*/)?sana\.py:)?(sana_([a-z0-9_]+)_([a-z0-9]+))")


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
        differs=("There it is a compiled copy that samples; here that is the family compile.",),
    ),
    "compile": Family(
        "brute force made fast: 96 samples a prompt by a compiled bf16 copy, 24 train",
        mode="compile",
        engine=_COMPILED,
        differs=("There this is called naive_scaling.",),
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
        engine=(
            *_COMPILED,
            "min_dim = 0  # FP8 is exact enough for every layer of the blocks",
            'skip_modules = ["t_embedder", "t_block", "y_embedder", "x_embedder", "final_layer"]',
        ),
        differs=(
            "Sol-RL has no FP8: cards without FP4 units, with all linear layers of the blocks in 8 bits instead.",
        ),
    ),
}
"""Family -> what it is."""


def names() -> list[str]:
    """Of all presets of the table, without .toml."""
    return [f"sana-image-nft-{family}-{reward}" for family in FAMILIES for reward in REWARDS]


def resolve(spec: str) -> str | None:
    """The preset for a name that Sol-RL has: ``sana_FAMILY_REWARD``, or its whole CONFIG_SPEC; None for others."""
    match = _SPEC.fullmatch(spec)
    if match is None:
        return None
    name = f"sana-image-nft-{match[2]}-{match[3]}"
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
