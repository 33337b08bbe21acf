"""What a valid file becomes: values, notes, overrides, derived numbers, identity."""

import contextlib
import random
import subprocess
import sys
from pathlib import Path

import pydantic
import pytest

from sanarl.config import Config, ConfigError, GRPOConfig, SFTConfig, load, preset_folder, preset_names

COSMOS = sorted((Path(__file__).parent / "data" / "presets").glob("*.toml"))
SFT = '[policy]\nmodel_name_or_path = "tiny-image"\nis_diffusers = true\n[train.train_policy]\ntype = "sft"\n'


def write(folder: Path, text: str, name: str = "preset.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def notes(source: str | Path, *overrides: str) -> list[str]:
    return [f"{note.level}: {note.text}" for note in load(source, overrides).notes]


def test_what_presets_are_shipped() -> None:
    tasks = [f"{media}-{task}" for media in ("image", "video") for task in ("flowgrpo", "nft", "sft", "sft-lora")]
    plain = [f"{size}-{task}" for size in ("sana", "tiny") for task in tasks]
    plain.append("tiny-image-awm")
    families = [f"tiny-image-nft-{name}" for name in ("naive_scaling", "sol_rl")]
    rewards = ("pickscore", "clipscore", "hpsv2", "imagereward")
    for model in ("sana", "sd3", "flux1"):
        for name in ("diffusionnft", "naive_scaling", "compile", "naive_quant", "sol_rl", "sol_rl-fp8"):
            families += [f"{model}-image-nft-{name}-{reward}" for reward in rewards]
    plain += [f"sd3-image-{task}" for task in ("nft", "sft", "sft-lora")]
    plain += [f"flux1-image-{task}" for task in ("nft", "sft-lora")]
    recipes = ["ocr", "geneval", "pickscore", "hpsv2", "multi_reward", *(f"multi_reward-{n}" for n in range(1, 6))]
    families += [f"sd3-image-nft-{name}" for name in recipes]
    assert preset_names() == sorted([*plain, *families])


@pytest.mark.parametrize("name", preset_names())
def test_shipped_presets_say_what_their_names_say_and_warn_of_nothing(name: str) -> None:
    loaded = load(name)
    assert f"{name}-".partition("-")[2].partition("-")[2].startswith(f"{loaded.config.task}-")
    assert ("video" in name) == loaded.config.policy.diffusers.is_video
    assert loaded.config.is_tiny == name.startswith("tiny")
    assert [note for note in loaded.notes if note.level == "warning"] == []
    assert loaded == load(f"{name}.toml")


@pytest.mark.parametrize("path", COSMOS, ids=lambda path: path.stem)
def test_cosmos_presets_load(path: Path) -> None:
    loaded = load(path)
    warnings = [note.text for note in loaded.notes if note.level == "warning"]
    assert path.stem.endswith(loaded.config.task)
    assert ("lora" in path.stem) == (loaded.config.task == "sft-lora")
    assert loaded.config.family == ("sd3" if path.stem.startswith("stable") else "sana")
    assert len([note for note in loaded.notes if note.level == "info"]) == 1
    if loaded.config.task == "nft":
        assert loaded.config.policy.diffusers.timesteps_fraction == 0.99
        assert [text.partition(" (")[0] for text in warnings] == [
            "policy.diffusers.timestep_fraction is read as timesteps_fraction"
        ]
    else:
        assert warnings == []


SD3 = {
    "sd3-image-sft": "stable-diffusion-3-5-image-sft",
    "sd3-image-sft-lora": "stable-diffusion-3-5-image-sft-lora",
    "sd3-image-nft": "stable-diffusion-3-5-medium-nft",
}
"""Our names of Cosmos-RL's presets for SD3.5."""


@pytest.mark.parametrize("name", [*(path.stem for path in COSMOS if path.stem.startswith("sana")), *SD3])
def test_our_presets_have_cosmos_values(name: str) -> None:
    # reference: the settings of Cosmos-RL's presets; data folders are ours, since its placeholders are swapped
    file = Path(COSMOS[0].parent, f"{SD3.get(name, name)}.toml")
    ours, theirs = (dict(load(source).config.leaves()) for source in (name, file))
    different = {key for key in ours if ours[key] != theirs[key]} - ({"train.output_dir"} if name in SD3 else set())
    assert different <= {"train.train_policy.dataset.local_dir", "validation.dataset.local_dir"}
    if "sft" in name:
        assert "training" in ours["train.train_policy.dataset.local_dir"]
        assert "validation" in ours["validation.dataset.local_dir"]


def test_numbers_of_the_tiny_recipe() -> None:
    config = load("tiny-image-nft").config
    assert (config.samples_per_step, config.prompts_per_step, config.samples_per_update) == (64, 8, 32)
    assert config.updates_per_rollout == 2
    assert config.policy.lora is not None
    assert config.policy.lora.lora_alpha / config.policy.lora.r == 2
    assert config.grpo.reward_function == {"shapes": 1.0}


def test_numbers_are_written_for_the_gpus_of_the_file() -> None:
    config = load("sana-image-nft").config
    assert (config.gpus, config.samples_per_step, config.prompts_per_step) == (8, 1152, 48)
    assert config.samples_per_update == 1152
    per_gpu = load("sana-image-nft", ["train.train_policy.batch_size_per_optimize=48"]).config
    assert (per_gpu.samples_per_update, per_gpu.updates_per_rollout) == (384, 3)
    twice = load(
        "sana-image-nft", ["policy.parallelism.n_init_replicas=2", "train.train_policy.mu_iterations=2"]
    ).config
    assert (twice.samples_per_step, twice.updates_per_rollout) == (2304, 2)
    assert load("sana-image-sft", ["policy.parallelism.dp_replicate_size=2"]).config.samples_per_step == 16


@pytest.mark.parametrize("trainer", ["", 'trainer_type = "sft"\n', 'trainer_type = "diffusers_sft"\n'])
def test_three_spellings_are_one_sft(tmp_path: Path, trainer: str) -> None:
    config = load(write(tmp_path, SFT + trainer)).config
    assert isinstance(config.train.train_policy, SFTConfig)
    assert config.identity() == load(write(tmp_path, SFT, "plain.toml")).config.identity()


@pytest.mark.parametrize("change", ["\ufeff{}", "{}\r\n", "# caf\u00e9 \U0001f600\n{}"])
def test_marks_line_ends_and_letters(tmp_path: Path, change: str) -> None:
    text = change.format(SFT).replace("\n", "\r\n" if "\r\n" in change else "\n").replace("\r\r", "\r")
    path = tmp_path / "preset.toml"
    path.write_bytes(text.encode())
    loaded = load(path)
    assert loaded.config == load(write(tmp_path, SFT, "plain.toml")).config
    assert bool(loaded.notes) == text.startswith("\ufeff")


def test_an_alias_and_an_argument() -> None:
    path = COSMOS[0].parent / "sana-image-nft.toml"
    for spelling in ("timesteps_fraction", "timestep_fraction"):
        config = load(path, [f"policy.diffusers.{spelling}=0.5"]).config
        assert config.policy.diffusers.timesteps_fraction == 0.5


def test_arguments() -> None:
    config = load(
        "sana-image-nft",
        [
            "train.output_dir=./x y",
            "train.optm_lr=1e-5",
            "train.optm_betas=[0.8, 0.9]",
            "logging.logger=['console']",
            "train.train_policy.remote_reward.reward_fns.0.weight=2.0",
            'policy.lora.r_pattern."attn1.to_q"=8',
            "custom.a.b = {c = true}",
            "train.seed=1",
            "train.seed=2",
        ],
    ).config
    assert config.train.output_dir == "./x y"
    assert (config.train.optm_lr, config.train.optm_betas, config.train.seed) == (1e-5, (0.8, 0.9), 2)
    assert config.logging.logger == ("console",)
    assert config.grpo.remote_reward.reward_fns[0].weight == 2
    assert config.policy.lora is not None
    assert config.policy.lora.r_pattern == {"attn1.to_q": 8}
    assert config.custom == {"a": {"b": {"c": True}}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [('"a"', {"a": 1.0}), ('["a", "m:f"]', {"a": 1.0, "m:f": 1.0}), ("{ a = 2, b = -0.5 }", {"a": 2.0, "b": -0.5})],
)
def test_three_ways_to_name_rewards(value: str, expected: dict[str, float]) -> None:
    config = load("tiny-image-nft", [f"train.train_policy.reward_function={value}"]).config
    assert config.grpo.reward_function == expected


def test_native_layers_are_read_as_the_diffusers_layers_that_hold_them() -> None:
    names = "['attn.qkv', 'attn.proj', 'cross_attn.q_linear', 'cross_attn.kv_linear', 'cross_attn.proj']"
    loaded = load("tiny-image-nft", [f"policy.lora.target_modules={names}"])
    assert loaded.config == load("tiny-image-nft").config
    assert any("native names" in note.text for note in loaded.notes)


def test_other_names_for_one_thing() -> None:
    overrides = [
        "policy.diffusers.weighting_scheme=none",
        "policy.diffusers.sample.solver=flow",
        'logging.experiment_name="None"',
    ]
    config = load("tiny-image-sft", overrides).config
    assert config.policy.diffusers.weighting_scheme == "uniform"
    assert config.policy.diffusers.sample.solver == "euler"
    assert config.logging.experiment_name is None


def test_notes(tmp_path: Path) -> None:
    assert notes("tiny-image-nft", "policy.diffusers.nft_beta=1e-4") == [
        "warning: policy.diffusers.nft_beta = 0.0001 divides the loss; published runs use 0.1 to 1 "
        "(the weight of the KL term is train.train_policy.kl_beta)"
    ]
    assert notes("tiny-image-sft", "policy.diffusers.nft_beta=1.0", "redis=1") == [
        "info: no effect here: redis, policy.diffusers.nft_beta"
    ]
    assert notes(write(tmp_path, SFT, "sana-video-nft-big.toml")) == [
        "warning: the file's name says sana, its model is tiny",
        "warning: the file's name says video, policy.diffusers.is_video says image",
        "warning: the file's name says nft, its content is sft",
    ]
    assert notes(write(tmp_path, SFT, "tiny-image-sft-mine.toml")) == []
    assert notes(write(tmp_path, SFT, "mine.toml")) == []


def test_a_configuration_is_frozen_and_survives_json() -> None:
    for name in preset_names():
        config = load(name).config
        assert Config.model_validate_json(config.model_dump_json()) == config
        with pytest.raises(pydantic.ValidationError):
            config.train.seed = 3  # type: ignore[misc]


SAFE = [
    "train.optm_lr=1e-5",
    "train.output_dir=x",
    "train.max_num_steps=7",
    "train.epoch=7",
    "validation.freq=7",
    "train.ckpt.save_freq=7",
    "logging.log_interval=7",
    "train.resume=true",
]


@pytest.mark.parametrize("override", SAFE)
def test_what_may_change_between_a_run_and_its_continuation(override: str) -> None:
    assert load("tiny-image-nft", [override]).config.identity() == load("tiny-image-nft").config.identity()


@pytest.mark.parametrize("override", ["train.seed=7", "policy.lora.r=8", "policy.diffusers.nft_beta=0.5"])
def test_what_may_not(override: str) -> None:
    before, after = load("tiny-image-nft").config, load("tiny-image-nft", [override]).config
    assert after.identity() != before.identity()
    changed = [key for key in before.fixed if before.fixed[key] != after.fixed[key]]
    assert changed == [override.partition("=")[0]]


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers", "sana"),
        ("/home/sana/models/stable-diffusion-3.5-medium", "sd3"),
        ("/models/sd3-sana-mix/weights", "sd3"),
        ("tiny-image", "sana"),
        ("black-forest-labs/FLUX.1-dev", "flux"),
        ("somebody/something", "unknown"),
    ],
)
def test_family(name: str, family: str) -> None:
    assert load("tiny-image-sft", [f"policy.model_name_or_path={name}"]).config.family == family


def test_presets_folder_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny-image-nft").mkdir()  # a run's folder must not hide the preset
    assert load("tiny-image-nft").path == preset_folder() / "tiny-image-nft.toml"


def test_a_file_in_the_working_folder_counts_before_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, SFT, "tiny-image-nft.toml")
    assert load("tiny-image-nft.toml").config.task == "sft"


def test_values_of_the_wrong_task_are_refused_in_python() -> None:
    with pytest.raises(AssertionError):
        _ = load("tiny-image-sft").config.grpo
    assert isinstance(load("tiny-image-nft").config.train.train_policy, GRPOConfig)


def test_any_bytes_give_a_configuration_or_one_page(tmp_path: Path) -> None:
    # reference: none; whatever stands in the file, nothing but ConfigError may be raised
    texts = [(preset_folder() / f"{name}.toml").read_text(encoding="utf-8") for name in preset_names()]
    values = [
        "true",
        "1",
        "-1.5",
        "nan",
        "inf",
        "9" * 30,
        "'x'",
        "[]",
        "{}",
        "[[1]]",
        "{a={b=1}}",
        "1979-05-27",
        "[{}]",
    ]
    random_ = random.Random(0)
    path = tmp_path / "preset.toml"
    for _ in range(400):
        lines = random_.choice(texts).split("\n")
        for _ in range(random_.choice([1, 2, 6])):
            at = random_.randrange(len(lines))
            if "=" in lines[at]:
                lines[at] = f"{lines[at].partition('=')[0]}= {random_.choice(values)}"
            else:
                lines[at] = random_.choice(['"', "[", "[[a]]", "\0", "a.b = 1", "train = 1", "policy = []"])
        path.write_bytes("\n".join(lines).encode())
        with contextlib.suppress(ConfigError):
            load(path)


def test_reading_a_configuration_imports_no_torch() -> None:
    code = "import sys, sanarl.cli, sanarl.config as c; c.load('tiny-image-nft'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
