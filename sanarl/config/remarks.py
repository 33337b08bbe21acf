"""What is worth a line although a configuration works: keys without effect, odd values, names that mislead."""

import re
from collections.abc import Iterator, Set

from sanarl.config import check_rollout
from sanarl.config.faults import Note
from sanarl.config.schema.guards import Guards
from sanarl.config.schema.policy import NATIVE_MODULES
from sanarl.config.schema.root import NAMES, Config

_TASK = "train.train_policy"
_SAMPLE = "policy.diffusers.sample"
_STEM = re.compile(
    r"(?P<family>.+?)-(?P<modality>image|video)-(?P<task>sft-lora|sft|nft|awm|flowgrpo)(?:-(?P<variant>.+))?"
)

ONLY_RL = (
    "policy.diffusers.timesteps_fraction",
    "policy.diffusers.sample.global_std",
    "policy.diffusers.sample.eval_num_steps",
    "rollout.n_generation",
    "rollout.n_generation_mini_batch",
    *check_rollout.ONLY_RL,
    "logging.multi_modal_log_interval",
    *(f"guards.{name}" for name in Guards.model_fields),
)
ONLY_NFT = ("policy.diffusers.nft_beta",)
ONLY_AWM = (f"{_TASK}.old_kl_beta", f"{_TASK}.matching_power")
ONLY_FORWARD = (
    "policy.diffusers.weight_copy_decay_type",
    "policy.diffusers.weight_copy_decay_value",
    "policy.diffusers.weight_copy_decay_steps",
)
ONLY_FLOW_GRPO = (
    f"{_SAMPLE}.noise_level",
    f"{_SAMPLE}.sde_type",
    f"{_SAMPLE}.sde_window_size",
    f"{_SAMPLE}.sde_window_range",
    f"{_SAMPLE}.same_latent",
    f"{_TASK}.ratio_norm",
    f"{_TASK}.step_reweighting",
)
ONLY_RATIOS = (f"{_TASK}.epsilon_low", f"{_TASK}.epsilon_high")
ONLY_SFT = (
    "policy.diffusers.weighting_scheme",
    "policy.diffusers.logit_mean",
    "policy.diffusers.logit_std",
    "policy.diffusers.train_flow_shift",
    "policy.diffusers.train_frames",
    "data.alpha_colour",
    "data.buckets",
    "data.short_clips",
    "data.cache",
)
"""Keys without effect in other tasks: an info line when a file sets them."""
ONLY_SHARDED = ("train.fsdp_reduce_dtype", "train.fsdp_reshard_after_forward", "train.fsdp_offload")
"""Keys that only count where ranks share weights: full fine-tuning with dp_shard_size above 1."""
ONLY_VIDEO = ("policy.diffusers.inference_frames", "policy.diffusers.train_frames", "data.short_clips")
REMOTE = (f"{_TASK}.remote_reward", "validation.remote_reward")
"""Tables that only count beside use_remote_reward = true."""


def notes(config: Config, given: Set[str], no_effect: list[str], stem: str) -> Iterator[Note]:
    """What is worth a line although it works."""
    idle = no_effect + [key for key in _idle(config) if key in given]
    if idle:
        yield Note("info", f"no effect here: {', '.join(dict.fromkeys(idle))}")
    beta = config.policy.diffusers.nft_beta
    if config.task == "nft" and beta < 0.01:
        yield Note(
            "warning",
            f"policy.diffusers.nft_beta = {beta:g} divides the loss; published runs use 0.1 to 1 "
            "(the weight of the KL term is train.train_policy.kl_beta)",
        )
    if config.is_rl and config.grpo.use_remote_reward and config.grpo.reward_function:
        yield Note("warning", "train.train_policy.reward_function is not used while use_remote_reward is true")
    yield from _name_notes(config, stem)


def _idle(config: Config) -> Iterator[str]:
    """Keys that this configuration has no use for."""
    yield from ONLY_SFT if config.is_rl else ONLY_RL
    yield from (
        key
        for keys, tasks in (
            (ONLY_NFT, ("nft",)),
            (ONLY_AWM, ("awm",)),
            (ONLY_FORWARD, ("nft", "awm")),
            (ONLY_FLOW_GRPO, ("flowgrpo",)),
            (ONLY_RATIOS, ("flowgrpo", "awm")),
        )
        if config.task not in tasks
        for key in keys
    )
    yield from () if config.policy.diffusers.is_video else ONLY_VIDEO
    yield from check_rollout.idle(config) if config.is_rl else ()
    yield from () if config.policy.lora is None and config.policy.parallelism.dp_shard_size > 1 else ONLY_SHARDED
    yield from () if config.is_native else ("policy.base_pipeline", "policy.native_config")
    trained = config.is_rl and config.grpo.use_remote_reward
    asked = config.validation.use_remote_reward
    yield from (
        key for key, used in zip(REMOTE, (trained, trained if asked is None else asked), strict=True) if not used
    )


def native_note(modules: object) -> Iterator[Note]:
    """A line when target_modules, as written, holds native names."""
    native = [name for name in modules if name in NATIVE_MODULES] if isinstance(modules, (list, tuple)) else []
    if native:
        meant = "; ".join(f"{name} is {', '.join(NATIVE_MODULES[name])}" for name in native)
        yield Note("info", f"policy.lora.target_modules: native names read as diffusers' ({meant})")


def _name_notes(config: Config, stem: str) -> Iterator[Note]:
    match = _STEM.fullmatch(stem)
    if match is None:
        return
    family = "tiny" if config.is_tiny else config.family
    start = match["family"]
    said = "tiny" if start == "tiny" else next((f for f, words in NAMES.items() if start.startswith(words)), None)
    if said is not None and family not in (said, "unknown"):
        yield Note("warning", f"the file's name says {match['family']}, its model is {family}")
    modality = "video" if config.policy.diffusers.is_video else "image"
    if match["modality"] != modality:
        yield Note("warning", f"the file's name says {match['modality']}, policy.diffusers.is_video says {modality}")
    if match["task"] != config.task:
        yield Note("warning", f"the file's name says {match['task']}, its content is {config.task}")
