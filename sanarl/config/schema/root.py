"""The whole configuration and the numbers that follow from it."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import PurePath
from typing import Any, Literal

from pydantic import Field

from sanarl.config.schema.base import Table
from sanarl.config.schema.data import Data
from sanarl.config.schema.guards import Guards
from sanarl.config.schema.logs import Logging
from sanarl.config.schema.policy import Policy
from sanarl.config.schema.rollout import Rollout
from sanarl.config.schema.train import GRPOConfig, SFTConfig, Train
from sanarl.config.schema.validation import Validation

Family = Literal["sana", "sd3", "flux"]
NAMES: dict[Family, tuple[str, ...]] = {"sd3": ("stable-diffusion-3", "sd3"), "flux": ("flux",), "sana": ("sana",)}
"""Families by what their models' names hold."""

TINY = ("tiny-image", "tiny-video")
"""Models inside this package."""

MAY_CHANGE = (
    "data.cache",
    "guards",
    "logging",
    "policy.diffusers.offload",
    "policy.memory_plan",
    "policy.model_gradient_checkpointing",
    "validation",
    "train.ckpt",
    "train.compile",
    "train.encode_ahead",
    "train.epoch",
    "train.fsdp_offload",
    "train.fsdp_reshard_after_forward",
    "train.fuse",
    "train.max_hours",
    "train.max_num_steps",
    "train.max_skipped_steps",
    "train.optm_lr",
    "train.output_dir",
    "train.rank_timeout_s",
    "train.resume",
    "train.save_ckpt_at_exit",
    "train.train_policy.dataloader_num_workers",
    "train.train_policy.dataloader_prefetch_factor",
    "train.train_policy.mini_batch",
    "train.train_policy.remote_reward.batch_size",
    "train.train_policy.remote_reward.deadline_s",
    "train.train_policy.remote_reward.patience_s",
    "rollout.n_generation_mini_batch",
)
"""Tables and keys that may differ between a run and its continuation: they leave the trained numbers comparable."""

Task = Literal["sft", "sft-lora", "nft", "awm", "flowgrpo"]
_TASKS: dict[str, Task] = {"diffusion_nft": "nft", "awm": "awm", "flow_grpo": "flowgrpo"}


class Config(Table):
    """A checked configuration. Attribute paths are Cosmos-RL's key paths."""

    policy: Policy
    train: Train
    rollout: Rollout = Rollout()
    validation: Validation = Validation()
    data: Data = Data()
    guards: Guards = Guards()
    logging: Logging = Logging()
    custom: dict[str, Any] = Field(default={})
    """Free for your own dataset module, which gets the whole configuration."""

    @property
    def task(self) -> Task:
        """What is trained, in the words of preset names."""
        if isinstance(self.train.train_policy, GRPOConfig):
            return _TASKS[self.train.train_policy.trainer_type]
        return "sft" if self.policy.lora is None else "sft-lora"

    @property
    def is_rl(self) -> bool:
        """Whether the task is reinforcement learning, of whatever algorithm."""
        return isinstance(self.train.train_policy, GRPOConfig)

    @property
    def is_tiny(self) -> bool:
        """Whether the model is one of those inside this package."""
        return self.policy.model_name_or_path in TINY

    @property
    def is_native(self) -> bool:
        """Whether the model is a checkpoint with NVlabs/Sana's own names."""
        return self.policy.model_name_or_path.endswith(".pth")

    @property
    def family(self) -> Family | Literal["unknown"]:
        """A guess from the model's name; its last part counts first."""
        if self.is_tiny or self.is_native:
            return "sana"
        name = self.policy.model_name_or_path.lower()
        for part in (PurePath(name).name, name):
            for family, words in NAMES.items():
                if any(word in part for word in words):
                    return family
        return "unknown"

    @property
    def modality(self) -> Literal["image", "video"]:
        """What the model makes."""
        return "video" if self.policy.diffusers.is_video else "image"

    @property
    def sample_frames(self) -> int:
        """Frames of a sample; 1 for pictures."""
        return self.policy.diffusers.inference_frames if self.modality == "video" else 1

    @property
    def item_frames(self) -> int:
        """Frames of a training item; 1 for pictures."""
        return self.policy.diffusers.train_frames if self.modality == "video" else 1

    @property
    def sft(self) -> SFTConfig:
        """train.train_policy of an SFT run."""
        assert isinstance(self.train.train_policy, SFTConfig), "asked for SFT settings in reinforcement learning"
        return self.train.train_policy

    @property
    def grpo(self) -> GRPOConfig:
        """train.train_policy of a reinforcement-learning run."""
        assert isinstance(self.train.train_policy, GRPOConfig), "asked for reinforcement-learning settings in SFT"
        return self.train.train_policy

    @property
    def gpus(self) -> int:
        """GPUs that the numbers are written for: dp_shard_size * dp_replicate_size * n_init_replicas."""
        sizes = self.policy.parallelism
        return sizes.dp_shard_size * sizes.dp_replicate_size * sizes.n_init_replicas

    @property
    def samples_per_step(self) -> int:
        """Samples of an SFT optimiser step over all GPUs; samples of a rollout in reinforcement learning."""
        if isinstance(self.train.train_policy, SFTConfig):
            return self.train.train_batch_per_replica * self.gpus
        return self.train.train_batch_per_replica * self.policy.parallelism.n_init_replicas

    @property
    def prompts_per_step(self) -> int:
        """Groups of a rollout."""
        return self.samples_per_step // self.rollout.n_generation

    @property
    def candidates(self) -> int:
        """Samples of a prompt that are drawn."""
        return self.rollout.n_candidates or self.rollout.n_generation

    @property
    def regenerated(self) -> int:
        """Samples of a prompt that are drawn in full: all candidates, or those whose previews tell most."""
        preview = self.rollout.preview
        return (preview.n_regenerate or self.rollout.n_generation) if preview.num_steps else self.candidates

    @property
    def engine_modes(self) -> tuple[str, ...]:
        """What samples rollouts: of previews, where there are any, and of full ones."""
        preview = self.rollout.preview
        return (*((preview.mode,) if preview.num_steps else ()), self.rollout.engine.mode)

    @property
    def samples_per_update(self) -> int:
        """Samples of one optimiser step in reinforcement learning, over all GPUs."""
        per_gpu = self.grpo.batch_size_per_optimize
        return self.samples_per_step if per_gpu is None else per_gpu * self.gpus

    @property
    def updates_per_rollout(self) -> int:
        """Optimiser steps that a rollout feeds."""
        return self.grpo.mu_iterations * (self.samples_per_step // self.samples_per_update)

    @property
    def stochastic_steps(self) -> range:
        """Flow-GRPO: the steps of a rollout that windows may hold; all but the last when nothing else is said."""
        sample = self.policy.diffusers.sample
        return range(*(sample.sde_window_range or (0, sample.num_steps - 1)))

    @property
    def sde_window(self) -> int:
        """Flow-GRPO: stochastic steps of a sample."""
        return self.policy.diffusers.sample.sde_window_size or len(self.stochastic_steps)

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """Key path and value (as JSON has it) of every key."""
        return _leaves(self.model_dump(mode="json"), "")

    @cached_property
    def fixed(self) -> dict[str, Any]:
        """Key path -> value of everything that must not change when a run is continued."""
        return {
            key: value for key, value in self.leaves() if not any(f"{key}.".startswith(f"{may}.") for may in MAY_CHANGE)
        }

    def identity(self) -> str:
        """Hash of ``fixed``: runs of equal identity may continue each other."""
        text = json.dumps(self.fixed, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _leaves(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
