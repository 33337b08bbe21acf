import json
from operator import attrgetter

import pytest

from sanarl.errors import UserError
from sanarl.training import build, launch, settings


@pytest.fixture
def config(toml, load_config, tmp_path):
    """A function that gives the configuration of a tiny task."""
    return lambda task, *overrides: load_config(toml(task, tmp_path / "out"), *overrides).config


def test_steps_of_a_run(config):
    # Reference: by hand. SFT takes 6 items a step, NFT 3 prompts.
    sft = ["train.epoch=3", "train.max_num_steps=100", "train.optm_warmup_steps=0"]
    assert settings.total_steps(config("sft", *sft), 20) == 10
    assert settings.total_steps(config("sft", *sft), 21) == 10
    assert settings.total_steps(config("nft", *sft), 21) == 21
    assert settings.total_steps(config("nft", *sft), 1000) == 100
    with pytest.raises(UserError, match=r"the dataset has 1 items and a step takes 6, .*raise train\.epoch to 6"):
        settings.total_steps(config("sft", *sft), 1)


@pytest.mark.parametrize(
    ("overrides", "warmup", "decay"),
    [
        ([], 2, 98),
        (["train.optm_warmup_steps=0.1"], 10, 90),
        (["train.optm_decay_ratio=0.25"], 2, 25),
        (['train.optm_decay_type="none"'], 2, 0),
    ],
)
def test_schedules_in_optimiser_steps(config, overrides, warmup, decay):
    # Reference: by hand, of 100 updates.
    found = settings.optim_settings(config("sft", *overrides), 100)
    assert (found.warmup_steps, found.decay_steps) == (warmup, decay)


def test_checkpoints_by_epoch(config):
    # Reference: by hand: 2 epochs of 20 items at 6 a step.
    assert settings.saving(config("sft"), 20).every == 2
    assert settings.saving(config("sft", "train.ckpt.save_freq_in_epoch=2"), 20).every == 6
    assert settings.saving(config("sft", "train.ckpt.save_freq_in_epoch=1"), 2).every == 1


def test_sampling_follows_the_models_shift_unless_told(config):
    assert settings.sampler(config("nft"), 3.0, 4, 2).flow_shift == 3.0
    told = config("nft", "policy.diffusers.sample.flow_shift=1.5")
    assert settings.sampler(told, 3.0, 4, 2).flow_shift == 1.5


def test_updates_of_a_rollout(config):
    # Reference: by hand: 12 samples, 6 an optimiser step.
    assert settings.rl_setup(config("nft"), 1.0).updates_per_pass == 2
    mu = config("nft", "train.train_policy.mu_iterations=3")
    assert (settings.rl_setup(mu, 1.0).updates_per_pass, mu.updates_per_rollout) == (2, 6)


def rl(c):
    return settings.rl_setup(c, 1.0)


def optim(c):
    return settings.optim_settings(c, 100)


def sft(c):
    return settings.sft_setup(c)


@pytest.mark.parametrize(
    ("task", "key", "value", "part", "name"),
    [
        ("nft", "train.train_policy.mini_batch", 7, rl, "settings.mini_batch"),
        ("nft", "policy.diffusers.nft_beta", 0.3, rl, "settings.nft_beta"),
        ("nft", "train.train_policy.kl_beta", 0.7, rl, "settings.kl_beta"),
        ("nft", "train.train_policy.advantage_mode", "binary", rl, "settings.advantage_mode"),
        ("nft", "policy.diffusers.timesteps_fraction", 0.9, rl, "settings.timesteps_fraction"),
        ("nft", "policy.diffusers.weight_copy_decay_type", 2, rl, "settings.decay_type"),
        ("nft", "policy.diffusers.sample.global_std", True, rl, "global_std"),
        ("nft", "train.train_policy.mu_iterations", 3, rl, "mu_iterations"),
        ("nft", "train.seed", 9, rl, "seed"),
        ("nft", "policy.diffusers.sample.num_steps", 9, rl, "sampler.num_steps"),
        ("nft", "policy.diffusers.sample.guidance_scale", 2.5, rl, "sampler.guidance_scale"),
        ("nft", "policy.diffusers.sample.solver", "dpm2", rl, "sampler.solver"),
        ("nft", "rollout.n_generation_mini_batch", 2, rl, "sampler.mini_batch"),
        ("sft", "train.train_policy.mini_batch", 5, sft, "settings.mini_batch"),
        ("sft", "policy.diffusers.weighting_scheme", "mode", sft, "settings.density"),
        ("sft", "policy.diffusers.logit_mean", 0.6, sft, "settings.logit_mean"),
        ("sft", "policy.diffusers.logit_std", 0.6, sft, "settings.logit_std"),
        ("sft", "policy.diffusers.train_flow_shift", 2.5, sft, "settings.flow_shift"),
        ("sft", "policy.diffusers.caption_dropout", 0.4, sft, "settings.caption_dropout"),
        ("sft", "train.train_batch_per_replica", 8, sft, "samples_per_step"),
        ("sft", "train.seed", 9, sft, "seed"),
        ("sft", "train.optm_name", "Adam", optim, "name"),
        ("sft", "train.optm_lr", 0.5, optim, "lr"),
        ("sft", "train.optm_betas", (0.5, 0.6), optim, "betas"),
        ("sft", "train.epsilon", 0.5, optim, "epsilon"),
        ("sft", "train.optm_weight_decay", 0.5, optim, "weight_decay"),
        ("sft", "train.optm_impl", "for-loop", optim, "impl"),
        ("sft", "train.optm_warmup_start_factor", 0.5, optim, "warmup_start_factor"),
        ("sft", "train.optm_decay_type", "sqrt", optim, "decay_type"),
        ("sft", "train.optm_min_lr_factor", 0.5, optim, "min_lr_factor"),
        ("sft-lora", "policy.lora.r", 3, settings.lora_settings, "r"),
        ("sft-lora", "policy.lora.lora_alpha", 3.0, settings.lora_settings, "alpha"),
        ("sft-lora", "policy.lora.use_rslora", True, settings.lora_settings, "use_rslora"),
        ("sft-lora", "policy.lora.init_lora_weights", "gaussian", settings.lora_settings, "init"),
    ],
)
def test_every_key_reaches_its_setting(config, task, key, value, part, name):
    # Reference: the value in the TOML; it differs from what the setting is without it.
    written = list(value) if isinstance(value, tuple) else value
    given = attrgetter(name)(part(config(task, f"{key}={json.dumps(written)}")))
    assert given == value
    assert attrgetter(name)(part(config(task))) != value


def test_clips_reach_the_loss_together(config):
    keys = [f"train.train_policy.advantage_{name}" for name in ("low=-2.0", "high=2.0")]
    assert rl(config("nft", *keys)).settings.advantage_clip == 2.0


def test_a_decay_of_ones_own(config):
    keys = ["type=3", "value=0.8", "steps=40"]
    found = rl(config("nft", *(f"policy.diffusers.weight_copy_decay_{key}" for key in keys))).settings
    assert (found.decay_type, found.decay_value, found.decay_steps) == (3, 0.8, 40)


def test_default_data_modules(config):
    assert build.default_module(config("sft")) == "sanarl.datasets.shapes"
    named = 'train.train_policy.dataset.name="pictures"'
    assert build.default_module(config("sft", named)) == "sanarl.datasets.diffusers_dataset"
    assert build.default_module(config("nft", named)) == "sanarl.datasets.diffusion_nft"


def test_validation_needs_a_validation_set(train, tmp_path):
    module = tmp_path / "data.py"
    module.write_text("from sanarl.datasets.shapes import get_dataset\n")
    with pytest.raises(UserError, match=r"validation\.enable: true, but \S+ has no get_val_dataset\(config\)"):
        train("sft", module=str(module))


@pytest.mark.parametrize(("asked", "found"), [(None, 1), ("1", 1), ("3", 3), ("auto", 1)])
def test_processes(asked, found, monkeypatch):
    monkeypatch.setattr(launch.torch.cuda, "device_count", lambda: 0)
    monkeypatch.delenv("NPROC_PER_NODE", raising=False)
    assert launch.processes(asked) == found


def test_processes_of_the_environment_and_of_the_machine(monkeypatch):
    monkeypatch.setattr(launch.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("NPROC_PER_NODE", "2")
    assert launch.processes(None) == 2
    assert launch.processes("auto") == 2
    for wrong in ("0", "-1", "two", "1.5", ""):
        with pytest.raises(UserError, match="--nproc"):
            launch.processes(wrong)
    with pytest.raises(UserError, match=r"found 3, but this machine has 2 GPU"):
        launch.processes("3")
