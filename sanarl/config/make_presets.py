"""The files of Sol-RL's families and DiffusionNFT's recipes, made from their tables.

python -m sanarl.config.make_presets, or make presets.
"""

from collections.abc import Iterator
from pathlib import Path

from sanarl.config import recipes
from sanarl.config.sol_rl import FAMILIES, MODELS, REWARDS, TINY, Family, Model

_LIVE = (
    "Adapters stay live beside the copies' weights; there they are merged into bf16 or 4 bits, which loses young ones."
)
_MADE = (
    "# Made by `make presets` from sanarl/config/sol_rl.py. "
    "The numbers are written for 8 GPUs; fewer give the same numbers."
)
_ALL = (
    "compile_mode is torch's default; max-autotune-no-cudagraphs takes minutes and finds the same products.",
    "Validation is off; --set validation.enable=true scores held-out prompts in {eval_steps} steps.",
)


def text(family: str, reward: str, model: str = "sana") -> str:
    """A preset's file."""
    its, base = FAMILIES[family], MODELS[model]
    name = f"{model}-image-nft-{family}-{reward}"
    is_theirs = its.theirs and not (family == "compile" and model == "sana")
    origin = f"Sol-RL's {base.theirs}_{family}_{reward}" if is_theirs else "A family of our own"
    every = (*its.differs, *(note for name, note in base.families if name == family), _LIVE, *base.differs, *_ALL)
    differs = "\n".join(f"# - {line}" for line in every).format(eval_steps=base.eval_steps)
    policy = "\n".join(base.policy)
    targets = "\n".join(f'    "{target}",' for target in base.targets)
    sample = "\n".join(base.sample)
    return f"""\
# DiffusionNFT on {base.about}, reward {reward}:
# {its.what}.
# {origin}, with Sol-RL's settings and base model. What differs:
{differs}
{base.instead}{_MADE}

[policy]
{policy}
is_diffusers = true
model_gradient_checkpointing = true

[policy.lora]
lora_names = ["default", "old"]  # the learner, and the policy that rolls out
r = 32
lora_alpha = 64
init_lora_weights = "gaussian"
target_modules = [
{targets}
]

[policy.diffusers]
dtype = "bfloat16"  # text encoder and autoencoder
offload = false
max_prompt_length = {base.prompt_length}
inference_size = [{base.size}, {base.size}]  # height, width
timesteps_fraction = {base.fraction} timesteps are trained
nft_beta = 1.0
weight_copy_decay_type = 1  # old follows the learner with a decay of min(0.001 i, 0.5)

[policy.diffusers.sample]
num_steps = 10
eval_num_steps = {base.eval_steps}
guidance_scale = 1.0
{sample}
deterministic_sampling = true
global_std = true

[policy.parallelism]
n_init_replicas = 1
dp_shard_size = 8

{_rollout(its, base)}
[train]
output_dir = "./outputs/{name}"
resume = true
epoch = 100000
seed = 42
train_batch_per_replica = 1152  # samples that train: 48 prompts of 24
param_dtype = "bfloat16"
optm_name = "AdamW"
optm_lr = 3e-4
optm_betas = [0.9, 0.999]
optm_weight_decay = 1e-4
epsilon = 1e-8
optm_warmup_steps = 0
optm_grad_norm_clip = {base.clip}
ema_enable = true
ema_decay = 0.9
ema_update_step_interval = 1

[train.train_policy]
type = "grpo"
trainer_type = "diffusion_nft"
mini_batch = {base.mini_batch}
kl_beta = 1e-4
advantage_low = -5.0
advantage_high = 5.0
advantage_mode = "all"
reward_function = {{ {reward} = 1.0 }}
dataset.name = "pickscore"
dataset.split = "train"

[train.ckpt]
enable_checkpoint = true
save_freq = 20

[validation]
enable = false
batch_size = 16
dataset.name = "pickscore"
dataset.split = "test"

[logging]
logger = ["console", "wandb"]
project_name = "sol-rl"
multi_modal_log_interval = 10
"""


def _rollout(its: Family, base: Model) -> str:
    pool = [f"n_candidates = {its.candidates}  # samples of a prompt, of which"] if its.candidates != 24 else []
    pool += ['select = "best_worst"'] if pool and its.preview_mode is None else []
    lines = ["[rollout]", *pool, "n_generation = 24  # train", "n_generation_mini_batch = 24", ""]
    if its.mode != "peft" or its.engine:
        modes = (its.mode, its.preview_mode)
        rule = base.quantised if "compile_nvfp4" in modes else base.fp8 if "compile_fp8" in modes else ()
        lines += ["[rollout.engine]", f'mode = "{its.mode}"', *its.engine, *rule, ""]
    if its.preview_mode is not None:
        lines += ["[rollout.preview]", "num_steps = 6", f'mode = "{its.preview_mode}"', 'select = "best_worst"']
        lines += ["n_regenerate = 24", *(["decode_scale = 0.5"] if its.preview_mode == "compile_fp8" else []), ""]
    return "\n".join(lines)


def tiny(family: str, base: str) -> str:
    """A tiny preset's file, from that of ``tiny-image-nft``."""
    what, lines, tables = TINY[family]
    _, _, body = base.partition("\n\n")
    before, mark, after = body.partition("[rollout]\nn_generation = 8  # samples of a prompt\n")
    assert mark, "tiny-image-nft has another [rollout]"
    rollout = "\n".join(
        ["[rollout]", "n_candidates = 24  # samples of a prompt, of which", *lines, "n_generation = 8  # train"]
    )
    after = after.replace("tiny-image-nft", f"tiny-image-nft-{family}")
    after = after.replace(
        "64  # samples of a rollout: 8 prompts of 8 samples", "64  # samples that train: 8 prompts of 8"
    )
    return (
        f"# DiffusionNFT on the tiny SANA inside this package, as Sol-RL explores:\n# {what}.\n"
        "# Made by `make presets` from tiny-image-nft.toml and sanarl/config/sol_rl.py.\n\n"
        f"{before}{rollout}\n{tables}{after}"
    )


def files(base: str) -> Iterator[tuple[str, str]]:
    """Every preset's file name and content; ``base`` is the text of tiny-image-nft."""
    for family in TINY:
        yield f"tiny-image-nft-{family}.toml", tiny(family, base)
    for model in MODELS:
        for family in FAMILIES:
            for reward in REWARDS:
                yield f"{model}-image-nft-{family}-{reward}.toml", text(family, reward, model)
    for name, content in recipes.files():
        yield f"{name}.toml", content


def write(folder: Path) -> None:
    """Write every file of the table."""
    for name, content in files((folder / "tiny-image-nft.toml").read_text(encoding="utf-8")):
        (folder / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    from sanarl.config.source import preset_folder

    write(preset_folder())
