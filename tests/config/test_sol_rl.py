"""Sol-RL's families. Reference: their published settings, written out by hand here."""

from pathlib import Path

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
    assert len(made) == 26
    for name, text in made.items():
        assert (preset_folder() / name).read_text(encoding="utf-8") == text, f"{name}: run `make presets`"
    shipped = {path.name for path in preset_folder().glob("*-image-nft-*.toml")}
    assert shipped == set(made)


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_settings(family: str, reward: str) -> None:
    config = load(f"sana-image-nft-{family}-{reward}").config
    candidates, steps, preview, mode = SETTINGS[family]
    rollout, diffusers, grpo, train = config.rollout, config.policy.diffusers, config.grpo, config.train
    assert (config.candidates, rollout.preview.num_steps, rollout.engine.mode) == (candidates, steps, mode)
    assert (rollout.n_generation, config.prompts_per_step, config.regenerated) == (24, 48, 24 if steps else candidates)
    if preview is not None:
        assert rollout.preview.mode == preview
        assert rollout.preview.decode_scale == (0.5 if preview == "compile_fp8" else 1.0)
    assert rollout.select == rollout.preview.select == "best_worst"
    if family != "sol_rl-fp8":
        assert rollout.engine.min_dim == 2240
        assert len(rollout.engine.skip_modules) == 8
    assert grpo.reward_function == {reward: 1.0}
    assert (grpo.kl_beta, grpo.mini_batch, grpo.advantage_high, grpo.advantage_mode) == (1e-4, 16, 5.0, "all")
    assert (config.updates_per_rollout, grpo.mu_iterations) == (1, 1)
    assert (diffusers.timesteps_fraction, diffusers.nft_beta, diffusers.weight_copy_decay_type) == (0.6, 1.0, 1)
    sample = diffusers.sample
    assert (sample.num_steps, sample.eval_num_steps, sample.guidance_scale, sample.flow_shift) == (10, 40, 1.0, 1.0)
    assert sample.global_std
    assert (train.optm_lr, train.optm_grad_norm_clip, train.optm_weight_decay, train.epsilon) == (3e-4, 1.0, 1e-4, 1e-8)
    assert (train.ema_enable, train.ema_decay, train.param_dtype, train.seed) == (True, 0.9, "bfloat16", 42)
    lora = config.policy.lora
    assert lora is not None
    assert (lora.r, lora.lora_alpha, lora.init_lora_weights) == (32, 64, "gaussian")
    assert config.policy.model_name_or_path == "hf://yitongl/SANA_LinearFFN/SANA_LinearFFN.pth"


@pytest.mark.parametrize(
    "spec", ["sana_sol_rl_hpsv2", "configs/sol_rl/sana.py:sana_sol_rl_hpsv2", "CONFIG_SPEC=x/sana.py:sana_sol_rl_hpsv2"]
)
def test_their_names_are_understood(spec: str) -> None:
    found = load(spec)
    assert found.path.stem == "sana-image-nft-sol_rl-hpsv2"
    assert [(note.level, note.text) for note in found.notes] == [
        ("info", "Sol-RL's name is read as the preset sana-image-nft-sol_rl-hpsv2")
    ]


def test_other_names_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve("sana_sol_rl_shapes") is None
    with pytest.raises(ConfigError, match="no such file, and no preset of that name"):
        load("configs/sol_rl/sd3.py:sd3_sol_rl_hpsv2")
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
