"""Names that other projects use for our keys: the one table behind hints for unknown keys and docs/config.md."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hint:
    """Our key or keys for somebody else's name; ``remark`` alone when there is no such key."""

    keys: tuple[str, ...] = ()
    remark: str = ""

    def __str__(self) -> str:
        text = " or ".join(self.keys)
        return f"{text} ({self.remark})" if text and self.remark else text or self.remark


_POLICY = "train.train_policy"
_SAMPLE = "policy.diffusers.sample"

HINTS: dict[str, Hint] = {
    "beta": Hint(
        ("policy.diffusers.nft_beta", f"{_POLICY}.kl_beta"),
        "two different numbers elsewhere share this name: DiffusionNFT's interpolation, and the weight of the KL term",
    ),
    "train.beta": Hint((f"{_POLICY}.kl_beta",), "the interpolation is policy.diffusers.nft_beta"),
    # optimiser
    "learning_rate": Hint(("train.optm_lr",)),
    "lr": Hint(("train.optm_lr",)),
    "max_grad_norm": Hint(("train.optm_grad_norm_clip",)),
    "weight_decay": Hint(("train.optm_weight_decay",)),
    "adam_weight_decay": Hint(("train.optm_weight_decay",)),
    "adam_epsilon": Hint(("train.epsilon",)),
    "eps": Hint(("train.epsilon",)),
    "adam_beta1": Hint(("train.optm_betas",), "the first of the two"),
    "adam_beta2": Hint(("train.optm_betas",), "the second of the two"),
    "betas": Hint(("train.optm_betas",)),
    "warmup_steps": Hint(("train.optm_warmup_steps",)),
    "ema": Hint(("train.ema_enable",)),
    "mixed_precision": Hint(("train.param_dtype",), 'bf16 is "bfloat16"'),
    "use_8bit_adam": Hint(remark="8-bit optimisers are not supported; train.optm_name says what is"),
    # batches
    "train.batch_size": Hint((f"{_POLICY}.mini_batch",), "samples of one forward pass on one GPU"),
    "gradient_accumulation_steps": Hint(
        (f"{_POLICY}.batch_size_per_optimize",), "accumulation follows from it and from mini_batch"
    ),
    "grad_steps_per_epoch": Hint((f"{_POLICY}.batch_size_per_optimize",)),
    "clip_range": Hint((f"{_POLICY}.epsilon_low", f"{_POLICY}.epsilon_high")),
    "sde_window": Hint((f"{_SAMPLE}.sde_window_size", f"{_SAMPLE}.sde_window_range")),
    "num_inner_epochs": Hint((f"{_POLICY}.mu_iterations",)),
    "num_epochs": Hint(("train.epoch",)),
    "max_train_steps": Hint(("train.max_num_steps",)),
    "num_batches_per_epoch": Hint(("train.train_batch_per_replica",), "samples of a rollout"),
    "best_of_n": Hint(("rollout.n_generation",), "the samples that train"),
    "group_size": Hint(("rollout.n_generation",)),
    "num_image_per_prompt": Hint(("rollout.n_candidates",), "rollout.n_generation of them train"),
    "n_candidates": Hint(("rollout.n_candidates",)),
    "rollout_batch_size": Hint(("rollout.n_generation_mini_batch",)),
    "per_prompt_iter_num": Hint(("rollout.n_generation_mini_batch",), "n_generation divided by it"),
    "test_batch_size": Hint(("validation.batch_size",)),
    # algorithm
    "adv_clip_max": Hint((f"{_POLICY}.advantage_low", f"{_POLICY}.advantage_high"), "-adv_clip_max and adv_clip_max"),
    "adv_mode": Hint((f"{_POLICY}.advantage_mode",)),
    "timestep_fraction": Hint(("policy.diffusers.timesteps_fraction",)),
    "decay_type": Hint(("policy.diffusers.weight_copy_decay_type",)),
    "reward_fn": Hint((f"{_POLICY}.reward_function",)),
    "per_prompt_stat_tracking": Hint((f"{_SAMPLE}.global_std",), "the baseline is always per prompt"),
    "only_strict": Hint(remark="a setting of single rewards"),
    # sampling
    "rollout_sample_num_steps": Hint((f"{_SAMPLE}.num_steps",)),
    "num_inference_steps": Hint((f"{_SAMPLE}.num_steps",)),
    "rollout_sample_guidance_scale": Hint((f"{_SAMPLE}.guidance_scale",)),
    "eval_sample_guidance_scale": Hint((f"{_SAMPLE}.guidance_scale",)),
    "sample.deterministic": Hint((f"{_SAMPLE}.deterministic_sampling",)),
    "resolution": Hint(("policy.diffusers.inference_size",), "[height, width]"),
    "height": Hint(("policy.diffusers.inference_size",), "[height, width]"),
    "width": Hint(("policy.diffusers.inference_size",), "[height, width]"),
    "num_frames": Hint(("policy.diffusers.inference_frames",)),
    "full_rollout_num": Hint(("rollout.preview.n_regenerate",)),
    "preview": Hint(("rollout.preview",)),
    "preview_step": Hint(("rollout.preview.num_steps",)),
    "preview_model": Hint(("rollout.preview.mode",)),
    "fullrollout_model": Hint(("rollout.engine.mode",)),
    "engine": Hint(("rollout.engine",)),
    "compile_mode": Hint(("rollout.engine.compile_mode",)),
    "nvfp4_skip_modules": Hint(("rollout.engine.skip_modules",)),
    "nvfp4_min_dim": Hint(("rollout.engine.min_dim",)),
    "stage1_select_mode": Hint(("rollout.preview.select",)),
    "stage2_select_mode": Hint(("rollout.select",)),
    "select": Hint(("rollout.select", "rollout.preview.select")),
    # adapter and model
    "lora_rank": Hint(("policy.lora.r",)),
    "rank": Hint(("policy.lora.r",)),
    "lora_init_weights": Hint(("policy.lora.init_lora_weights",)),
    "use_dora": Hint(remark="adapters are LoRA's alone, without DoRA's magnitudes"),
    "lora.bias": Hint(remark="biases are not trained"),
    "lora_target_modules": Hint(("policy.lora.target_modules",)),
    "native_model_path": Hint(("policy.model_name_or_path",), "with policy.base_pipeline"),
    "native_model_source": Hint(("policy.model_name_or_path",), "with policy.base_pipeline"),
    "native_config": Hint(("policy.native_config",)),
    "pretrained": Hint(("policy.model_name_or_path",)),
    "pretrained_model": Hint(("policy.model_name_or_path",)),
    "gradient_checkpointing": Hint(("policy.model_gradient_checkpointing",)),
    "memory_plan": Hint(("policy.memory_plan",)),
    # run
    "resume_from": Hint(("train.resume",), "or --resume"),
    "save_dir": Hint(("train.output_dir",)),
    "run_name": Hint(("logging.experiment_name",)),
    "num_checkpoint_limit": Hint(("train.ckpt.max_keep",)),
    "eval_freq": Hint(("validation.freq",)),
    "prompt_fn": Hint((f"{_POLICY}.dataset.name",), "with a dataset module that reads those prompts"),
    "data": Hint((f"{_POLICY}.dataset",)),
}


def hint_for(path: str) -> Hint | None:
    """The hint for an unknown key; a longer ending of the path counts before a shorter one."""
    parts = path.split(".")
    endings = (".".join(parts[start:]) for start in range(max(0, len(parts) - 2), len(parts)))
    return next((HINTS[ending] for ending in endings if ending in HINTS), None)
