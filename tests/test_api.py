"""The names that Python programs may rely on."""

import json

import pytest

import sanarl

PUBLIC = ["Config", "ConfigError", "UserError", "__version__", "load_config", "rewards", "train"]


def test_the_public_names_are_these_and_no_others():
    assert sorted(sanarl.__all__) == PUBLIC == sorted(dir(sanarl))
    for name in PUBLIC:
        assert getattr(sanarl, name) is not None
    with pytest.raises(AttributeError, match="public: Config, ConfigError"):
        sanarl.load_configuration  # noqa: B018


def test_train_runs_a_configuration_and_returns_its_folder(tmp_path):
    config = sanarl.load_config(
        "tiny-image-sft-lora",
        [
            f"train.output_dir={tmp_path}",
            "train.max_num_steps=1",
            "train.optm_warmup_steps=0",
            "train.train_batch_per_replica=2",
            "validation.enable=false",
        ],
    )
    folder = sanarl.train(config, resume="never")
    assert folder.parent == tmp_path
    assert (folder / "safetensors" / "step_1" / "pytorch_lora_weights.safetensors").is_file()
    assert json.loads((folder / "config.json").read_text())["config"] == config.model_dump(mode="json")


def test_rewards_are_built_by_name():
    assert sanarl.rewards.build({"shapes": 1.0}).names == ["shapes"]
