"""Every page that a person can get for a configuration, byte for byte.

SANARL_SNAPSHOTS=write pytest tests/config/test_config_errors.py writes tests/config/snapshots anew; read the diff.
"""

import os
from pathlib import Path

import pytest

from sanarl.config import ConfigError, load

SNAPSHOTS = Path(__file__).parent / "snapshots"

POLICY = """\
[policy]
model_name_or_path = "tiny-image"
is_diffusers = true
"""
LORA = """\
[policy.lora]
lora_names = ["default", "old"]
target_modules = ["attn1.to_q"]
"""
SFT = """\
[train.train_policy]
type = "sft"
"""
BARE_NFT = """\
[train.train_policy]
type = "grpo"
trainer_type = "diffusion_nft"
reward_function = { shapes = 1.0 }
"""
NFT = f"[rollout]\nn_generation = 8\n{BARE_NFT}"
SANA = POLICY.replace("tiny-image", "Efficient-Large-Model/SANA1.5_1.6B_1024px_diffusers")
VIDEO = POLICY.replace("tiny-image", "Efficient-Large-Model/SANA-Video_2B_480p_diffusers")

TEXTS: dict[str, str] = {
    # what is not TOML
    "syntax_value": POLICY + "[train]\nseed = forty-two\n",
    "syntax_twice": POLICY + "is_diffusers = true\n",
    "syntax_ends": POLICY + '[train]\noutput_dir = "a',
    "syntax_no_equals": POLICY + "seed\n",
    "syntax_bracket": POLICY + "[train\n",
    "empty": "\n  \n",
    "too_deep": POLICY + "[custom]\na = " + "[" * 40 + "]" * 40 + "\n",
    "long_integer": POLICY + f"[train]\nseed = {'9' * 5000}\n",
    "wide_integer": POLICY + SFT + f"[train]\nseed = 0x{'f' * 4000}\n",
    # other kinds of preset
    "kind_language_model": '[policy]\nmodel_name_or_path = "Qwen/Qwen2.5-7B-Instruct"\nfoo = 1\n[train]\nbar = 2\n',
    "kind_not_diffusers": '[policy]\nmodel_name_or_path = "a/b"\nis_diffusers = false\nfoo = 1\n[train]\nbar = 2\n',
    "kind_unsaid": '[train]\nbar = 2\n[policy]\nmodel_name_or_path = "a/b"\n',
    "kind_vla": POLICY + "[vla]\nhorizon = 2\n",
    # the task
    "task_missing": POLICY + "[train]\nseed = -1\n",
    "task_no_table": POLICY + "[train]\ntrain_policy = 3\n",
    "task_no_type": POLICY + "[train.train_policy]\nmini_batch = 2\n",
    "task_unknown": POLICY + '[train.train_policy]\ntype = "dpo"\n[train]\nseed = -1\n',
    "task_grpo_bare": POLICY + '[train.train_policy]\ntype = "grpo"\n',
    "task_grpo_trainer": POLICY + '[train.train_policy]\ntype = "grpo"\ntrainer_type = "grpo"\n',
    "task_sft_trainer": POLICY + SFT + 'trainer_type = "diffusion_nft"\n',
    # unknown keys
    "unknown_near": POLICY + SFT + "mini_bach = 2\n[train]\noptm_lrr = 1e-4\n",
    "unknown_elsewhere": POLICY + SFT + "[train]\nnft_beta = 1.0\nlora_alpha = 3\n[lgging]\na = 1\n",
    "unknown_nothing_near": POLICY + SFT + '[train]\nzzz = 1\n"a.b" = 2\n"" = 3\n[quux.corge]\ngrault = 1\n',
    "unknown_beta": POLICY + SFT + "beta = 1.0\n[policy.diffusers]\nbeta = 1.0\n[train]\nbeta = 1e-4\n",
    "unknown_names_elsewhere": "best_of_n = 24\nadv_clip_max = 5\n"
    + POLICY
    + SFT
    + "[train]\nlearning_rate = 1e-4\nmax_grad_norm = 1.0\nnum_inner_epochs = 1\nbatch_size = 4\n"
    + "[rollout]\nn_candidates = 96\n[rollout.preview]\nnum_steps = 6\n",
    "unknown_other_task": POLICY + SFT + "kl_beta = 0.1\ntemperature = 1.0\n",
    "unknown_in_entry": POLICY
    + LORA
    + NFT
    + '[[train.train_policy.remote_reward.reward_fns]]\nname = "a"\nwieght = 1\n'
    + "[[train.train_policy.remote_reward.reward_fns]]\nclip_min = 3\n",
    # fates
    "fate_unsupported": POLICY
    + 'freeze_pattern = ["x"]\nmodel_safetensor_path = "x"\n'
    + SFT
    + "[policy.parallelism]\ntp_size = 2\ncp_size = true\n[policy.lora]\nlora_dropout = 0.1\ntarget_modules = ['a']\n"
    + "modules_to_save = ['b']\n[train]\nactivation_offload = true\n"
    + "[train.fp8]\nenable_fp8 = true\n[train.fp4]\nenable_fp4 = true\n[train.ckpt]\nupload_hf = true\n"
    + 'upload_s3 = "final"\n[rollout]\nquantization = "fp8"\nbackend = "vllm"\n[profiler]\nenable_profiler = true\n'
    + "[policy.diffusers.lora]\nr = 4\n",
    "fate_not_a_table": "profiler = 3\n" + POLICY + SFT,
    "alias_and_key": POLICY + LORA + NFT + "[policy.diffusers]\ntimestep_fraction = 0.9\ntimesteps_fraction = 0.5\n",
    # values
    "values_types": POLICY
    + SFT
    + "[train]\nseed = true\nepoch = 1.0\noptm_lr = [1e-4, 1e-5]\nema_enable = 1\noutput_dir = 3\nresume = 2\n"
    + 'optm_betas = [0.9]\noptm_impl = ["fused"]\noptm_warmup_steps = "many"\nckpt = 1979-05-27\n',
    "values_bounds": POLICY
    + SFT
    + "mini_batch = 0\n[train]\nseed = -1\noptm_lr = 0.0\noptm_warmup_steps = 1.5\noptm_betas = [0.9, 1.0]\n"
    + 'param_dtype = "float16"\nmaster_dtype = "bfloat16"\nepsilon = nan\noptm_weight_decay = inf\n'
    + '[policy.diffusers]\ndtype = "flaot16"\ninference_size = [1000, 1024]\ninference_frames = 10\n'
    + "timesteps_fraction = 1.1\nweight_copy_decay_type = 4\n[logging]\nlogger = ['consol']\n",
    "values_lora": POLICY
    + SFT
    + '[policy.lora]\nr = 0\ntarget_modules = "(["\ninit_lora_weights = "pissa"\nr_pattern = { "a.b" = 0 }\n',
    "values_missing": "[policy]\nis_diffusers = true\n[policy.lora]\nr = 4\n" + SFT,
    "values_rewards": POLICY
    + LORA
    + NFT.replace("{ shapes = 1.0 }", '["a", "a"]')
    + "[validation]\nreward_function = { a = true }\n",
    # rules between keys
    "rule_no_adapter": POLICY + NFT,
    "rule_lora_names": POLICY + LORA.replace('"default", "old"', '"default"') + NFT,
    "rule_lora_names_sft": POLICY + LORA + SFT,
    "rule_image_is_video": SANA + SFT + "[policy.diffusers]\nis_video = true\n",
    "rule_video_is_image": VIDEO + SFT,
    "rule_start_of_pictures": POLICY + SFT + "[policy.diffusers]\nimage_to_video = true\n",
    "rule_start_in_rl": VIDEO
    + LORA
    + NFT
    + "[policy.diffusers]\nis_video = true\nimage_to_video = true\ninference_frames = 1\n",
    "rule_native": POLICY.replace('"tiny-image"', '"hf://owner/repo/SANA.pth"')
    + SFT
    + "[policy.diffusers]\nis_video = true\n",
    "rule_native_only": POLICY.replace('"tiny-image"', '"hf://owner/repo"')
    + 'base_pipeline = "a/b"\nnative_config = "x.yaml"\n'
    + SFT,
    "rule_stochastic": POLICY + LORA + NFT + "[policy.diffusers.sample]\ndeterministic_sampling = false\n",
    "rule_flow_grpo_steps": POLICY
    + LORA.replace('"default", "old"', '"default"')
    + NFT.replace("diffusion_nft", "flow_grpo")
    + "[policy.diffusers]\nweight_copy_decay_type = 1\n[policy.diffusers.sample]\ndeterministic_sampling = true\n"
    + 'noise_level = 1.2\nsde_type = "cps"\nsolver = "dpm2"\nnum_steps = 10\nsde_window_range = [4, 10]\n',
    "rule_flow_grpo_window": POLICY
    + LORA
    + NFT.replace("diffusion_nft", "flow_grpo")
    + "[policy.diffusers.sample]\nnoise_level = 0.0\nnum_steps = 10\nsde_window_size = 3\nsde_window_range = [4, 6]\n",
    "rule_flow_grpo_one_step": POLICY
    + LORA
    + NFT.replace("diffusion_nft", "flow_grpo")
    + "[policy.diffusers.sample]\nnum_steps = 1\n",
    "rule_groups": POLICY + LORA + BARE_NFT + "[train]\ntrain_batch_per_replica = 100\n[rollout]\nn_generation = 24\n",
    "rule_batch_default": POLICY + LORA + BARE_NFT,
    "rule_group_of_one": POLICY + LORA + BARE_NFT + "[rollout]\nn_generation = 1\n",
    "rule_update_remainder": POLICY
    + LORA
    + BARE_NFT
    + "batch_size_per_optimize = 20\n[train]\ntrain_batch_per_replica = 64\n[rollout]\nn_generation = 8\n",
    "rule_update_share": POLICY
    + LORA
    + BARE_NFT
    + "batch_size_per_optimize = 2\n[train]\ntrain_batch_per_replica = 32\n[rollout]\nn_generation = 4\n",
    "rule_advantages": POLICY + LORA + NFT + "advantage_low = -4\nadvantage_high = 5\n",
    "rule_no_reward": POLICY + LORA + NFT.replace("{ shapes = 1.0 }", "{}"),
    "rule_no_weight": POLICY + LORA + NFT.replace("1.0", "0.0"),
    "rule_no_remote_reward": POLICY + LORA + NFT + "use_remote_reward = true\n",
    "rule_remote_clip": POLICY
    + LORA
    + NFT
    + '[train.train_policy.remote_reward]\nreward_clip_min = 6\nreward_fns = [{ name = "a", clip_min = 9 }]\n',
    "rule_old_policy": POLICY
    + LORA
    + NFT
    + "[policy.diffusers]\nweight_copy_decay_type = 3\nweight_copy_decay_value = 0.9\n",
    "rule_old_policy_idle": POLICY + LORA + NFT + "[policy.diffusers]\nweight_copy_decay_steps = 10\n",
    "rule_decay": POLICY + SFT + "[train]\noptm_decay_ratio = 0.5\noptm_min_lr_factor = 0.1\n",
    "rule_warmup": POLICY + SFT + "[train]\noptm_warmup_steps = 30\nmax_num_steps = 20\n",
    "rule_warmup_and_decay": POLICY
    + SFT
    + '[train]\noptm_warmup_steps = 0.6\noptm_decay_ratio = 0.5\noptm_decay_type = "cosine"\n',
    "rule_prefetch": POLICY + SFT + "dataloader_prefetch_factor = 2\n",
    "rule_caption_dropout": POLICY + LORA + NFT + "[policy.diffusers]\ncaption_dropout = 0.1\n",
    "rule_validation": POLICY + LORA + NFT + "[validation]\nuse_remote_reward = true\nreward_function = { a = 0 }\n",
    "everything_at_once": SANA
    + "[policy.diffusers]\nis_video = true\ninference_frames = 6\n"
    + LORA
    + NFT
    + "mini_bach = 3\nadvantage_low = -4.0\n[train]\nseed = -1\n[rollout.parallelism]\ntp_size = 2\n",
}

SETS: dict[str, list[str]] = {
    "set_no_equals": ["train.seed", "=3", " "],
    "set_no_value": ["train.seed="],
    "set_not_a_key": ["train..seed=1", "a b=1", "train.seed=1\nx=2", "a\nb=3"],
    "set_not_toml": ["train.optm_betas=[0.9, ", 'train.output_dir="x'],
    "set_not_a_table": ["train.seed.x=3", "policy.lora.r.x.y=1"],
    "set_no_entry": ["train.train_policy.remote_reward.reward_fns.7.weight=2"],
    "set_bad_value": [
        "train.seed=-1",
        "train.optm_lr=fast",
        "rollout.n_generation=True",
        "policy.diffusers.dtype=fp32",
    ],
    "set_unknown": ["train.optm_lrr=1e-4", "rolout.n_generation=2", "beta=1"],
    "set_breaks_rule": ["rollout.n_generation=7"],
}


def page(source: str | Path, overrides: list[str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(source, overrides or [])
    return f"{caught.value}\n"


def check(name: str, text: str) -> None:
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("SANARL_SNAPSHOTS") == "write":
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", TEXTS)
def test_page_of_a_file(name: str, folder: Path) -> None:
    (folder / "preset.toml").write_text(TEXTS[name], encoding="utf-8")
    check(name, page("preset.toml"))


@pytest.mark.parametrize("name", SETS)
def test_page_of_an_argument(name: str) -> None:
    check(name, page("tiny-image-nft", SETS[name]))


def test_page_of_what_is_no_file(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "latin.toml").write_bytes(b"# caf\xe9\n")
    (folder / "wide.toml").write_bytes("[policy]\n".encode("utf-16"))
    (folder / "big.toml").write_bytes(b"#" * (1 << 21))
    sources = [
        "run",
        "latin.toml",
        "wide.toml",
        "big.toml",
        "tiny-image-ntf.toml",
        "configs/sana-image-nft.tml",
        "xyzzy",
    ]
    check("no_file", "".join(page(source) for source in [*sources, "", "a\0b", "x" * 5000]).replace("x" * 5000, "x..x"))


def test_every_snapshot_has_a_case() -> None:
    assert {path.stem for path in SNAPSHOTS.iterdir()} == {*TEXTS, *SETS, "no_file"}


def test_faults_have_lines_in_order(folder: Path) -> None:
    (folder / "preset.toml").write_text(TEXTS["everything_at_once"], encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load("preset.toml", ["train.epoch=0"])
    lines = [fault.line for fault in caught.value.faults]
    assert lines[:-1] == sorted(line for line in lines if line is not None)
    assert caught.value.faults[-1].argument == "train.epoch=0"
