"""The keys of Cosmos-RL that the schema does not honour, and what becomes of each.

A key in ``FATES`` is accepted with the values that ask for nothing we lack, and then has no effect; any other value is
an error that says what is supported. A key in ``ALIASES`` is read as another one.
"""

from dataclasses import dataclass
from typing import Any, Literal

ALIASES: dict[str, tuple[str, str]] = {
    "policy.diffusers.timestep_fraction": (
        "policy.diffusers.timesteps_fraction",
        "Cosmos-RL itself ignores this spelling and trains on every timestep",
    ),
}
"""Key -> the key that it is read as, and a remark."""


@dataclass(frozen=True)
class Fate:
    """``harmless``: the values without effect, None for every value. ``instead``: what is supported."""

    harmless: tuple[Any, ...] | None = None
    instead: str = ""

    @property
    def kind(self) -> Literal["no effect", "unsupported value"]:
        """The name of the fate in tables: what happens to values that are not harmless decides."""
        return "no effect" if self.harmless is None else "unsupported value"

    def allows(self, value: Any) -> bool:
        """Whether the value asks for nothing that is missing."""
        if self.harmless is None:
            return True
        return any(_same(value, harmless) for harmless in self.harmless)


def _same(value: Any, other: Any) -> bool:
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


ANY = Fate()
OFF = (False,)
ONE = (1,)
EMPTY: tuple[Any, ...] = ("", [], {})


def _off(instead: str) -> Fate:
    return Fate(OFF, instead)


def _one(instead: str) -> Fate:
    return Fate(ONE, instead)


_GPUS = "fewer or more GPUs change the time of a step, not its numbers; sizes other than dp_* must be 1"
_WHICH = "what is trained is the adapter of [policy.lora], or the whole transformer without that table"
_LANGUAGE = "a setting of language models"
_COLUMNS = "a dataset module says which columns it reads"
_BALANCE = "every GPU takes the same number of samples"
_UPLOAD = "upload the folder of train.ckpt.export_safetensors yourself"
_PROFILE = "metrics.jsonl has the times of every step"
_LOSS = "the loss has no such term"

_PARALLELISM: dict[str, Fate] = {
    "tp_size": _one(f"tensor parallelism is not supported: {_GPUS}"),
    "cp_size": _one(f"context parallelism is not supported: {_GPUS}"),
    "ep_size": _one(f"expert parallelism is not supported: {_GPUS}"),
    "pp_size": _one(f"pipeline parallelism is not supported: {_GPUS}"),
    "pp_dynamic_shape": ANY,
    "pp_micro_batch_size": ANY,
    "pp_schedule": ANY,
    "pp_layers_per_stage": ANY,
}

_DATASET: dict[str, Fate] = {
    "subset": Fate(("",), "a dataset module says which part it reads; dataset.split names it"),
    "revision": Fate(("",), "a dataset module says which revision it reads"),
    "test_size": Fate((0,), "held-out data is not cut from training data; name it in [validation.dataset]"),
}

_ROOT: dict[str, Fate] = {
    "redis": ANY,
    "eth_ips": ANY,
    "mode": Fate(("disaggregated", "colocated", "colocated_separated"), "training and rollout share the GPUs"),
    "vla": Fate((), "presets for vision-language-action models cannot be used"),
    "distillation.enable": _off("distillation is not supported"),
    "distillation.*": ANY,
    "profiler.enable_profiler": _off(_PROFILE),
    "profiler.enable_nsys": _off(_PROFILE),
    "profiler.sub_profiler_config.do_profile": _off(_PROFILE),
    "profiler.sub_profiler_config.*": ANY,
}

_POLICY: dict[str, Fate] = {
    "model_safetensor_path": Fate((), "policy.model_name_or_path takes a local folder"),
    "model_max_length": ANY,
    "trainable_map": Fate(({},), _WHICH),
    "freeze_pattern": Fate(([],), _WHICH),
    "trainable_pattern": Fate(([],), _WHICH),
    "enable_liger_kernel": _off(_LANGUAGE),
    "enable_liger_cross_entropy": _off(_LANGUAGE),
    "enable_liger_fused_cross_entropy": _off(_LANGUAGE),
    "aux_loss_coeff": Fate((0,), f"{_LANGUAGE} with experts"),
    "lora.lora_dropout": Fate(
        (0,), "dropout is not supported: every draw follows from the sample's identity, so that resuming is exact"
    ),
    "lora.primary_adapter": Fate(("", "default"), 'the adapter that is trained is always "default"'),
    "lora.modules_to_save": Fate(([],), "whole layers beside an adapter are not trained; see target_modules"),
    "diffusers.lora": Fate((), "the table is [policy.lora]"),
    "diffusers.tokenizer.chunk_duration": ANY,
    "diffusers.tokenizer.load_mean_std": ANY,
    "diffusers.tokenizer.compile_encode": _off("the VAE is not compiled"),
    "diffusers.tokenizer.temporal_window": ANY,
    **{f"parallelism.{name}": fate for name, fate in _PARALLELISM.items()},
}

_ROLLOUT: dict[str, Fate] = {
    **{f"parallelism.{name}": fate for name, fate in _PARALLELISM.items()},
    "parallelism.n_init_replicas": ANY,
    "parallelism.dp_shard_size": ANY,
    "parallelism.dp_replicate_size": ANY,
    "backend": Fate(("diffusion_nft_rollout",), "rollouts come from the model that is trained"),
    "quantization": Fate(("none",), "rollouts run in train.param_dtype"),
    "multi_turn_config.enable": _off(_LANGUAGE),
    **dict.fromkeys(
        (
            "enforce_eager",
            "include_stop_str_in_output",
            "gpu_memory_utilization",
            "enable_chunked_prefill",
            "max_response_length",
            "n_generation_to_batch",
            "batch_size",
            "seed",
            "sampling_config.*",
            "vllm_use_flashinfer",
            "multi_turn_config.*",
            "mode",
            "async_config.*",
            "async_r2r_sync",
            "prefetch_rollout",
            "prefetch_queue_maxsize",
            "broadcast_all_params",
        ),
        ANY,
    ),
}

_TRAIN: dict[str, Fate] = {
    "fp8.enable_fp8": _off("training runs in train.param_dtype, bfloat16 or float32"),
    "fp8.*": ANY,
    "fp4.enable_fp4": _off("training runs in train.param_dtype, bfloat16 or float32"),
    "fp4.*": ANY,
    "activation_offload": _off("policy.model_gradient_checkpointing saves the memory of activations"),
    "async_tp_enabled": _off("tensor parallelism is not supported"),
    "sequence_packing": _off(_LANGUAGE),
    "sync_weight_interval": _one("rollouts always use the newest weights"),
    "signal_to_handle": Fate(
        ([], ["SIGUSR1"]), "Ctrl-C and SIGTERM save a checkpoint, as train.save_ckpt_at_exit says"
    ),
    "ckpt.upload_s3": Fate((False, ""), _UPLOAD),
    "ckpt.s3_bucket": ANY,
    "ckpt.s3_prefix": ANY,
    **dict.fromkeys(
        (
            "transfer_dtype",
            "logprob_dtype",
            "timestamp",
            "coalesce_weight_sync",
            "fa_version",
            "local_dataset",
            "force_use_hf",
            "non_text",
        ),
        ANY,
    ),
}

_BOTH_TASKS: dict[str, Fate] = {
    "dataloader_batch_size": ANY,
    "enable_dataset_cache": _off("data is read again every epoch"),
    "data_dispatch_as_rank_in_mesh": ANY,
    "balance_dp_token": ANY,
}

_SFT: dict[str, Fate] = {
    **_BOTH_TASKS,
    "conversation_column_name": ANY,
    "system_prompt": Fate(("",), f"{_LANGUAGE}; policy.diffusers.complex_human_instruction is the pipeline's own"),
    "enable_dp_load_balancing": _off(_BALANCE),
    "load_balanced_pool_size": ANY,
    "load_balanced_max_tokens_for_batch": ANY,
    "load_balanced_batching_strategy": ANY,
    "load_balanced_batches_per_optimizer_step": ANY,
    "dataloader_broadcast": ANY,
    "dataloader_drop_last": ANY,  # epochs are laid end to end, so no step is short
}

_GRPO: dict[str, Fate] = {
    **_BOTH_TASKS,
    "variant": Fate(("grpo",), "train.train_policy.trainer_type names the algorithm"),
    "algo": Fate(("grpo",), "train.train_policy.trainer_type names the algorithm"),
    "prompt_column_name": Fate(("",), _COLUMNS),
    "response_column_name": Fate(("",), _COLUMNS),
    "filter_reward_metric": Fate(EMPTY, "every group trains"),
    "bypass_reward": _off("advantages come from rewards"),
    "group_reward_calculation": _off("rewards score single samples"),
    "positive_nll_coef": Fate((0,), _LOSS),
    "unbiased_advantage": _off("policy.diffusers.sample.global_std says what advantages are divided by"),
    "unbiased_kl_estimate": _off("kl_beta weighs a distance in closed form, which needs no estimate"),
    "off_policy_masking_delta": Fate((), _LOSS),
    "aipo_rho": Fate((), _LOSS),
    "entropy_coeff": Fate((0,), _LOSS),
    "reference_reset_interval": Fate((0,), "the reference is what training started from"),
    "use_decoupled_loss": _off(_LOSS),
    "use_rollout_logprobs_for_loss": _off(_LOSS),
    **dict.fromkeys(
        (
            "dataloader_num_workers",
            "dataloader_prefetch_factor",
            "temperature",
            "lower_bound_ratio",
            "loss_type",
            "unbiased_loss_max_tokens",
            "overlong_reward.*",
            "max_token_len_per_mini_batch",
            "allowed_outdated_steps",
            "on_policy",
            "uncentralized_training",
            "outdated_rollout_fetch_batch_size",
            "max_inflight_steps",
            "min_filter_prefix_tokens",
            "max_retry_for_on_policy",
            "reset_optimizer_with_reference",
            "behav_imp_weight_cap",
            "rollout_as_token_ids",
            "collect_rollout_logprobs",
        ),
        ANY,
    ),
}

_VALIDATION: dict[str, Fate] = dict.fromkeys(
    ("temperature", "top_p", "top_k", "repetition_penalty", "max_response_length"), ANY
)

_SHARED: dict[str, Fate] = {
    **_ROOT,
    **{f"policy.{name}": fate for name, fate in _POLICY.items()},
    **{f"rollout.{name}": fate for name, fate in _ROLLOUT.items()},
    **{f"train.{name}": fate for name, fate in _TRAIN.items()},
    **{f"train.train_policy.dataset.{name}": fate for name, fate in _DATASET.items()},
    **{f"validation.dataset.{name}": fate for name, fate in _DATASET.items()},
    **{f"validation.{name}": fate for name, fate in _VALIDATION.items()},
}

FATES: dict[str, dict[str, Fate]] = {
    "sft": _SHARED | {f"train.train_policy.{name}": fate for name, fate in _SFT.items()},
    "grpo": _SHARED | {f"train.train_policy.{name}": fate for name, fate in _GRPO.items()},
}
"""train_policy.type -> key path -> fate; "table.*" is every key below the table that has no line of its own."""


def fate_of(path: str, kind: str) -> Fate | None:
    """The fate of a key, or None when Cosmos-RL does not know it or the schema honours it."""
    fates = FATES[kind]
    if path in fates:
        return fates[path]
    parts = path.split(".")
    tables = (".".join(parts[:length]) for length in range(len(parts) - 1, 0, -1))
    return next((fates[f"{table}.*"] for table in tables if f"{table}.*" in fates), None)


def is_table(path: str, kind: str) -> bool:
    """Whether keys below this path have fates."""
    return any(key.startswith(f"{path}.") for key in FATES[kind])
