"""Sol-RL's families. Reference: their published settings, written out by hand here."""

from pathlib import Path
from typing import NamedTuple

import pytest

from sanarl.config import ConfigError, load, preset_folder
from sanarl.config.make_presets import files
from sanarl.config.sol_rl import FAMILIES, REWARDS, START, names, resolve

# family -> candidates, preview steps, preview mode, full mode
SETTINGS = {
    "diffusionnft": (24, 0, None, "peft"),
    "naive_scaling": (96, 0, None, "peft"),
    "compile": (96, 0, None, "compile"),
    "naive_quant": (96, 0, None, "compile_nvfp4"),
    "sol_rl": (96, 6, "compile_nvfp4", "compile"),
    "sol_rl-fp8": (96, 6, "compile_fp8", "compile"),
}


def test_files_are_what_the_table_makes() -> None:
    base = (preset_folder() / "tiny-image-nft.toml").read_text(encoding="utf-8")
    made = dict(files(base))
    assert len(made) == 2 + 3 * 24 + 10
    for name, text in made.items():
        assert (preset_folder() / name).read_text(encoding="utf-8") == text, f"{name}: run `make presets`"
    shipped = {path.name for path in preset_folder().glob("*-image-nft-*.toml")}
    assert shipped == set(made)


ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
EIGHT = ("add_k_proj", "add_q_proj", "add_v_proj", "to_add_out", "to_k", "to_out.0", "to_q", "to_v")


class Published(NamedTuple):
    """What Sol-RL sets for a model."""

    model: str
    targets: set[str]
    size: int
    solver: str
    noise: float
    shift: float | None
    fraction: float
    eval_steps: int
    batch: int
    clip: float
    min_dim: int
    skipped: set[str]


MODELS = {
    "sana": Published(
        "hf://yitongl/SANA_LinearFFN/SANA_LinearFFN.pth",
        {f"attn{n}.{layer}" for n in (1, 2) for layer in ATTENTION},
        *(1024, "euler", 1.0, 1.0, 0.6, 40, 16, 1.0, 2240),
        {
            "t_embedder",
            "t_block",
            "cfg_embedder",
            "y_embedder",
            "x_embedder",
            "final_layer",
            "logvar_linear",
            "attn.qkv",
        },
    ),
    "sd3": Published(
        "stabilityai/stable-diffusion-3.5-large",
        {f"attn.{layer}" for layer in EIGHT},
        *(1024, "dpm2", 0.7, None, 0.6, 40, 4, 0.002, 2432),
        {"pos_embed", "context_embedder", "time_text_embed", "norm_out", "norm1", "ff_context"},
    ),
    "flux1": Published(
        "black-forest-labs/FLUX.1-dev",
        set(ATTENTION),
        *(512, "dpm2", 0.7, None, 0.4, 28, 12, 1.0, 1000),
        {"x_embedder", "context_embedder", "time_text_embed", "norm_out"},
    ),
}


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("model", MODELS)
def test_settings(model: str, family: str, reward: str) -> None:
    config = load(f"{model}-image-nft-{family}-{reward}").config
    candidates, steps, preview, mode = SETTINGS[family]
    theirs = MODELS[model]
    rollout, diffusers, grpo, train = config.rollout, config.policy.diffusers, config.grpo, config.train
    assert (config.candidates, rollout.preview.num_steps, rollout.engine.mode) == (candidates, steps, mode)
    assert (rollout.n_generation, config.prompts_per_step, config.regenerated) == (24, 48, 24 if steps else candidates)
    if preview is not None:
        assert rollout.preview.mode == preview
        assert rollout.preview.decode_scale == (0.5 if preview == "compile_fp8" else 1.0)
    assert rollout.select == rollout.preview.select == "best_worst"
    if "compile_nvfp4" in (preview, mode):
        assert (rollout.engine.min_dim, set(rollout.engine.skip_modules)) == (theirs.min_dim, theirs.skipped)
    assert grpo.reward_function == {reward: 1.0}
    assert (grpo.kl_beta, grpo.mini_batch, grpo.advantage_high, grpo.advantage_mode) == (1e-4, theirs.batch, 5.0, "all")
    assert (config.updates_per_rollout, grpo.mu_iterations) == (1, 1)
    assert (diffusers.timesteps_fraction, diffusers.nft_beta, diffusers.weight_copy_decay_type) == (
        theirs.fraction,
        1.0,
        1,
    )
    sample = diffusers.sample
    assert diffusers.inference_size == (theirs.size, theirs.size)
    assert (sample.num_steps, sample.eval_num_steps, sample.guidance_scale) == (10, theirs.eval_steps, 1.0)
    assert (sample.solver, sample.noise_level, sample.flow_shift) == (theirs.solver, theirs.noise, theirs.shift)
    assert sample.global_std
    assert (train.optm_lr, train.optm_grad_norm_clip) == (3e-4, theirs.clip)
    assert (train.optm_weight_decay, train.epsilon) == (1e-4, 1e-8)
    assert (train.ema_enable, train.ema_decay, train.param_dtype, train.seed) == (True, 0.9, "bfloat16", 42)
    lora = config.policy.lora
    assert lora is not None
    assert (lora.r, lora.lora_alpha, lora.init_lora_weights) == (32, 64, "gaussian")
    assert (config.policy.model_name_or_path, set(lora.target_modules)) == (theirs.model, theirs.targets)


# prompts, rewards, sampling steps, nft_beta, optimiser steps on a rollout, decay of the old policy, steps
RECIPES = {
    "ocr": ("ocr", {"ocr"}, 10, 0.1, 2, 2, None),
    "geneval": ("geneval", {"geneval"}, 10, 1.0, 1, 1, None),
    "pickscore": ("pickscore", {"pickscore"}, 10, 1.0, 1, 1, None),
    "hpsv2": ("pickscore", {"hpsv2"}, 10, 1.0, 1, 1, None),
    "multi_reward": ("pickscore", {"pickscore", "hpsv2", "clipscore"}, 25, 0.1, 1, 1, None),
    "multi_reward-1": ("pickscore", {"pickscore", "hpsv2", "clipscore"}, 40, 0.1, 1, 1, 800),
    "multi_reward-2": ("geneval", {"geneval", "pickscore", "hpsv2", "clipscore"}, 40, 0.1, 1, 1, 300),
    "multi_reward-3": ("pickscore", {"pickscore", "hpsv2", "clipscore"}, 40, 0.1, 1, 1, 200),
    "multi_reward-4": ("geneval", {"geneval", "pickscore", "hpsv2", "clipscore"}, 40, 0.1, 1, 1, 200),
    "multi_reward-5": ("ocr", {"ocr", "pickscore", "hpsv2", "clipscore"}, 40, 0.1, 1, 1, 100),
}


@pytest.mark.parametrize("name", RECIPES)
def test_diffusion_nfts_recipes(name: str) -> None:
    # Reference: the project's public configuration (config/nft.py), and the stages of the paper's appendix C.
    prompts, rewards, steps, beta, updates, decay, stage = RECIPES[name]
    config = load(f"sd3-image-nft-{name}").config
    diffusers, grpo, train, lora = config.policy.diffusers, config.grpo, config.train, config.policy.lora
    assert config.policy.model_name_or_path == "stabilityai/stable-diffusion-3.5-medium"
    assert (grpo.dataset.name, grpo.reward_function) == (prompts, dict.fromkeys(rewards, 1.0))
    assert (diffusers.sample.num_steps, diffusers.nft_beta, diffusers.weight_copy_decay_type) == (steps, beta, decay)
    assert (diffusers.inference_size, diffusers.timesteps_fraction, diffusers.max_prompt_length) == (
        (512,) * 2,
        0.99,
        128,
    )
    assert (diffusers.sample.solver, diffusers.sample.guidance_scale, diffusers.sample.noise_level) == (
        "dpm2",
        1.0,
        0.7,
    )
    assert (config.updates_per_rollout, config.prompts_per_step, config.rollout.n_generation) == (updates, 48, 24)
    assert (grpo.kl_beta, grpo.mini_batch, grpo.advantage_high) == (1e-4, 9, 5.0)
    assert (train.optm_lr, train.optm_grad_norm_clip, train.max_num_steps) == (3e-4, 1.0, stage)
    assert (train.ema_decay, train.seed, train.epsilon, train.optm_weight_decay) == (0.9, 42, 1e-8, 1e-4)
    assert lora is not None
    assert (lora.r, lora.lora_alpha, set(lora.target_modules)) == (32, 64, {f"attn.{layer}" for layer in EIGHT})
    assert (lora.lora_path is not None) == (name[-2:] in ("-2", "-3", "-4", "-5"))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "spec", ["{}_sol_rl_hpsv2", "configs/sol_rl/{}.py:{}_sol_rl_hpsv2", "CONFIG_SPEC=x/{}.py:{}_sol_rl_hpsv2"]
)
def test_their_names_are_understood(spec: str, model: str) -> None:
    found = load(spec.format(model, model))
    assert found.path.stem == f"{model}-image-nft-sol_rl-hpsv2"
    assert ("info", f"that project's name is read as the preset {found.path.stem}") in [
        (note.level, note.text) for note in found.notes
    ]


@pytest.mark.parametrize("recipe", ["ocr", "geneval", "pickscore", "hpsv2", "multi_reward"])
def test_diffusion_nfts_names_are_understood(recipe: str) -> None:
    assert resolve(f"sd3_{recipe}") == resolve(f"config/nft.py:sd3_{recipe}") == f"sd3-image-nft-{recipe}"


def test_other_names_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve("sana_sol_rl_shapes") is resolve("sd3_sol_rl_shapes") is resolve("sana_ocr") is None
    with pytest.raises(ConfigError, match="no such file, and no preset of that name"):
        load("configs/sol_rl/wan.py:wan_sol_rl_hpsv2")
    monkeypatch.chdir(tmp_path)
    Path("sana_sol_rl_hpsv2").write_text(Path(preset_folder() / "tiny-image-sft.toml").read_text(encoding="utf-8"))
    assert load("sana_sol_rl_hpsv2").config.task == "sft"  # a file of that name comes first


def test_sana_1_5_is_one_argument_away() -> None:
    found = load(
        "sana-image-nft-sol_rl-fp8-pickscore",
        ["policy.model_name_or_path=Efficient-Large-Model/SANA1.5_1.6B_1024px_diffusers"],
    )
    assert not found.config.is_native
    assert [note.text for note in found.notes] == ["no effect here: policy.base_pipeline"]


def test_where_to_start_is_there() -> None:
    assert set(START) - set(names()) == {"tiny-image-nft"}


def test_tiny_families_have_the_pool_of_their_large_ones() -> None:
    brute, sol = (load(f"tiny-image-nft-{name}").config for name in ("naive_scaling", "sol_rl"))
    assert (brute.candidates, brute.regenerated, brute.rollout.n_generation) == (24, 24, 8)
    assert (sol.candidates, sol.regenerated, sol.engine_modes) == (24, 8, ("emulated_nvfp4", "peft"))
