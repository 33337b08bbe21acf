"""DiffusionNFT's recipes for SD3.5-M as presets: its public configurations, and the stages of its joint training.

Zheng et al., arXiv:2509.16117; ``make presets`` writes the files.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

PREFERENCE = ("pickscore", "hpsv2", "clipscore")


@dataclass(frozen=True)
class Recipe:
    """What sets a recipe apart."""

    what: str
    """In a sentence or two, as comment lines."""
    rewards: tuple[str, ...]
    """Each with weight 1."""
    prompts: str
    """Name of the prompt set."""
    num_steps: int = 10
    nft_beta: str = "1.0"
    updates: int = 1
    """Optimiser steps on a rollout."""
    decay: int = 1
    steps: int | None = None
    """Of the stage; None: until it is stopped."""
    stage: int = 0
    """Of joint training; 0: it is none."""


_JOINT = Recipe(
    "joint training: what people prefer, by three rewards of equal weight",
    PREFERENCE,
    "pickscore",
    num_steps=25,
    nft_beta="0.1",
)


def _stage(number: int, prompts: str, steps: int, rule: tuple[str, ...]) -> Recipe:
    what = f"stage {number} of 5 of joint training: {steps} steps on the prompts of {prompts}"
    rewards = (*rule, *PREFERENCE)
    return replace(_JOINT, what=what, rewards=rewards, prompts=prompts, num_steps=40, steps=steps, stage=number)


RECIPES: dict[str, Recipe] = {
    "ocr": Recipe("text that can be read", ("ocr",), "ocr", nft_beta="0.1", updates=2, decay=2),
    "geneval": Recipe("objects in number, colour and place", ("geneval",), "geneval"),
    "pickscore": Recipe("what people prefer, by PickScore", ("pickscore",), "pickscore"),
    "hpsv2": Recipe("what people prefer, by HPSv2", ("hpsv2",), "pickscore"),
    "multi_reward": _JOINT,
    "multi_reward-1": _stage(1, "pickscore", 800, ()),
    "multi_reward-2": _stage(2, "geneval", 300, ("geneval",)),
    "multi_reward-3": _stage(3, "pickscore", 200, ()),
    "multi_reward-4": _stage(4, "geneval", 200, ("geneval",)),
    "multi_reward-5": _stage(5, "ocr", 100, ("ocr",)),
}
"""The end of a preset's name -> what it is."""

_DECAYS = {1: "min(0.001 i, 0.5)", 2: "0 for 75 updates, then 0.0075 more each to 0.999"}
_TARGETS = ("add_k_proj", "add_q_proj", "add_v_proj", "to_add_out", "to_k", "to_out.0", "to_q", "to_v")


def text(name: str) -> str:
    """A recipe's file."""
    its, preset = RECIPES[name], f"sd3-image-nft-{name}"
    targets = "\n".join(f'    "attn.{target}",' for target in _TARGETS)
    rewards = ", ".join(f"{reward} = 1.0" for reward in its.rewards)
    kept = max(1, int(its.num_steps * 0.99 + 1e-9))
    limit = "" if its.steps is None else f"max_num_steps = {its.steps}\n"
    share = 1152 // 8 // its.updates
    per_update = f"batch_size_per_optimize = {share}  # a GPU: {its.updates} optimiser steps on a rollout\n"
    return f"""\
# DiffusionNFT on SD3.5-M at 512 px: {its.what}.
{_origin(its)}
# - Computed in bfloat16, there in float16.
# - Noise levels are evenly spaced before the shift; there diffusers spaces them, and the last of 10 is 0.009.
# - Validation is off; --set validation.enable=true scores held-out prompts in 40 steps.
# Made by `make presets` from sanarl/config/recipes.py. The numbers are written for 8 GPUs; fewer give the same numbers.

[policy]
model_name_or_path = "stabilityai/stable-diffusion-3.5-medium"
is_diffusers = true
model_gradient_checkpointing = true

[policy.lora]
lora_names = ["default", "old"]  # the learner, and the policy that rolls out
r = 32
lora_alpha = 64
init_lora_weights = "gaussian"
{_start(its)}target_modules = [
{targets}
]

[policy.diffusers]
dtype = "bfloat16"  # text encoders and autoencoder
offload = false
max_prompt_length = 128
inference_size = [512, 512]  # height, width
timesteps_fraction = 0.99  # {kept} of {its.num_steps} timesteps are trained
nft_beta = {its.nft_beta}
weight_copy_decay_type = {its.decay}  # old follows the learner with a decay of {_DECAYS[its.decay]}

[policy.diffusers.sample]
num_steps = {its.num_steps}
eval_num_steps = 40
guidance_scale = 1.0
noise_level = 0.7
solver = "dpm2"
deterministic_sampling = true
global_std = true

[policy.parallelism]
n_init_replicas = 1
dp_shard_size = 8

[rollout]
n_generation = 24  # samples of a prompt
n_generation_mini_batch = 9

[train]
output_dir = "./outputs/{preset}"
resume = true
epoch = 100000
{limit}seed = 42
train_batch_per_replica = 1152  # samples of a rollout: 48 prompts of 24
param_dtype = "bfloat16"
optm_name = "AdamW"
optm_lr = 3e-4
optm_betas = [0.9, 0.999]
optm_weight_decay = 1e-4
epsilon = 1e-8
optm_warmup_steps = 0
optm_grad_norm_clip = 1.0
ema_enable = true
ema_decay = 0.9
ema_update_step_interval = 1

[train.train_policy]
type = "grpo"
trainer_type = "diffusion_nft"
mini_batch = 9
{per_update if its.updates > 1 else ""}kl_beta = 1e-4
advantage_low = -5.0
advantage_high = 5.0
advantage_mode = "all"
reward_function = {{ {rewards} }}
dataset.name = "{its.prompts}"
dataset.split = "train"

[train.ckpt]
enable_checkpoint = true
save_freq = 30

[validation]
enable = false
freq = 10
batch_size = {14 if its.prompts == "geneval" else 16}
dataset.name = "{its.prompts}"
dataset.split = "test"

[logging]
logger = ["console", "wandb"]
project_name = "diffusion-nft"
multi_modal_log_interval = 10
"""


def _origin(its: Recipe) -> str:
    if not its.stage:
        return "# Its public configuration of that name, with its settings. What differs:"
    lines = (
        "# Stages (800 steps on pickscore, 300 on geneval, 200 on pickscore, 200 on geneval, 100 on ocr) and 40",
        "# sampling steps are the paper's (appendix C); its public configuration, multi_reward, is of one stage and 25",
        "# steps. What joins the verdicts of geneval and ocr is our reading: the three rewards of stage 1, all at 1.",
        "# What differs:",
    )
    after = ("# - The KL term is against the adapter that the stage starts from, there against the base model.",)
    return "\n".join((*lines, *(after if its.stage > 1 else ())))


def _start(its: Recipe) -> str:
    """Where a later stage goes on: the export of the one before."""
    if its.stage < 2:
        return ""
    before = f"sd3-image-nft-multi_reward-{its.stage - 1}"
    return f'lora_path = "path/to/{before}"  # a folder outputs/{before}/RUN/safetensors/step_N\n'


def files() -> Iterator[tuple[str, str]]:
    """Every preset's name and content."""
    return ((f"sd3-image-nft-{name}", text(name)) for name in RECIPES)
