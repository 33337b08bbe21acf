"""Where our defaults differ from Cosmos-RL's, and why: the one table behind docs/config.md."""

from typing import NamedTuple


class Departure(NamedTuple):
    """Cosmos-RL's default, ours, and the reason."""

    theirs: str
    ours: str
    reason: str


DEPARTURES: dict[str, Departure] = {
    "policy.model_name_or_path": Departure(
        '"Qwen/Qwen2.5-VL-7B-Instruct"', "required", "a language model is no sensible default for diffusion"
    ),
    "policy.is_diffusers": Departure("false", "required", "only diffusion presets are trained; this key marks them"),
    "policy.lora.target_modules": Departure("unset", "required", "layers differ between families; a guess could miss"),
    "policy.diffusers.sample.solver": Departure(
        '"dpm2"', '"euler"', "one first-order step is what presets ask for and what a stock pipeline reproduces"
    ),
    "policy.diffusers.sample.deterministic_sampling": Departure(
        "false", "unset", "the algorithm decides: Flow-GRPO takes stochastic steps, everything else follows the ODE"
    ),
    "policy.parallelism.tp_size": Departure("2", "1", "tensor parallelism is not supported"),
    "rollout.parallelism.tp_size": Departure("2", "1", "tensor parallelism is not supported"),
    "rollout.backend": Departure('"vllm"', '"diffusion_nft_rollout"', "vllm serves language models"),
    "train.ckpt.hf_repo_name": Departure(
        '"Comos-Reason1"', "unset", "where to upload is named by whoever asks for an upload"
    ),
    "train.compile": Departure("true", "false", "the first step takes a minute longer; worth it on a GPU"),
    "train.train_policy.type": Departure('"grpo"', "required", "the task should be read in the file, not guessed"),
    "train.train_policy.trainer_type": Departure(
        '"grpo"', 'required for type "grpo"', "that trainer is for language models; the algorithm must be named"
    ),
    "train.train_policy.reward_function": Departure(
        '["single_choice"]', "an empty table", "that reward reads text; a run without any reward is an error"
    ),
    "train.train_policy.remote_reward.reward_fns": Departure(
        "dance_grpo", "[]", "a video reward is no sensible default for images"
    ),
    "validation.remote_reward.reward_fns": Departure(
        "dance_grpo", "[]", "a video reward is no sensible default for images"
    ),
    "train.train_policy.epsilon_low": Departure(
        "0.2", "0.0001", "ratios of mean log-probabilities stay near 1, and a clip range of 0.2 would never act"
    ),
    "train.train_policy.epsilon_high": Departure(
        "0.2", "0.0001", "ratios of mean log-probabilities stay near 1, and a clip range of 0.2 would never act"
    ),
    "train.ema_update_step_interval": Departure("0", "1", "an average that is switched on should be updated"),
    "train.seed": Departure("unset", "0", "a run should be repeatable without asking for it"),
    "logging.logger": Departure("[]", '["console"]', "a run should be seen"),
    "logging.log_interval": Departure("100", "1", "diffusion steps take seconds, and short runs have fewer than 100"),
}
"""Key path -> departure."""
