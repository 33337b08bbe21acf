"""Tiny runs through the same door as the command line's, and what they leave behind."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
STOPPING = str(HERE / "stopping.py")

COMMON = """
[policy]
model_name_or_path = "MODEL"
is_diffusers = true
model_gradient_checkpointing = false
[policy.diffusers]
offload = false
max_prompt_length = 12
inference_size = [32, 32]
DIFFUSERS
[policy.diffusers.sample]
num_steps = 3
eval_num_steps = 3
guidance_scale = 1.0
global_std = false
[train]
output_dir = "OUTPUT"
epoch = 10
max_num_steps = 4
param_dtype = "float32"
optm_impl = "foreach"
optm_lr = 1e-2
epsilon = 1e-3  # keeps Adam from blowing rounding up where a gradient is all but zero
optm_warmup_steps = 2
optm_decay_type = "cosine"
ema_enable = true
train_batch_per_replica = BATCH
[train.ckpt]
enable_checkpoint = true
save_freq = 2
max_keep = -1
[validation]
enable = true
val_before_train = true
freq = 2
num_prompts = 3
n_generation = 2
dataset.name = "shapes"
reward_function = { "REWARD" = 1.0 }
[logging]
logger = []
"""
QUIET = """
[guards]
enable = false
"""

ADAPTER = """
[policy.lora]
lora_names = NAMES
r = 4
lora_alpha = 8
target_modules = ["attn1.to_q", "attn1.to_v", "attn2.to_q", "attn2.to_v", "attn2.to_out.0"]
"""

SFT = """
[train.train_policy]
type = "sft"
mini_batch = 3
dataset.name = "shapes"
"""

NFT = """
[rollout]
n_generation = 4
[train.train_policy]
type = "grpo"
trainer_type = "diffusion_nft"
mini_batch = 5
batch_size_per_optimize = 6
kl_beta = 0.1
reward_function = { "REWARD" = 1.0 }
dataset.name = "shapes"
"""


CLIPS = """is_video = true
fps = 8
inference_frames = FRAMES
"""
FLOW_GRPO = NFT.replace("diffusion_nft", "flow_grpo") + "epsilon_low = 0.01\nepsilon_high = 0.01\n"
"""With a clip range that no ratio reaches, so that none crosses it by rounding."""
AWM = NFT.replace("diffusion_nft", "awm") + "epsilon_low = 0.9\nepsilon_high = 9.0\nold_kl_beta = 0.5\n"


def preset(task, model, output, frames):
    """TOML of a tiny run: SFT of 6 samples a step, or 3 prompts x 4 samples a step with two optimiser steps."""
    text = (
        COMMON
        + {
            "sft": SFT,
            "sft-lora": ADAPTER + SFT,
            "nft": ADAPTER + NFT + QUIET,
            "awm": ADAPTER + AWM + QUIET,
            "flowgrpo": ADAPTER + FLOW_GRPO + QUIET,
        }[task]
    )
    is_rl, extra = task in ("nft", "awm", "flowgrpo"), "caption_dropout = 0.2"
    if is_rl:
        extra = "timesteps_fraction = 0.7" + ("\nweight_copy_decay_type = 1" if task != "flowgrpo" else "")
    replaced = {
        "MODEL": model,
        "OUTPUT": output,
        "BATCH": 12 if is_rl else 6,
        "NAMES": '["default", "old"]' if is_rl else '["default"]',
        "REWARD": f"{HERE / 'redness.py'}:redness",
        "DIFFUSERS": extra,
    }
    if frames > 1:
        replaced["DIFFUSERS"] += "\n" + CLIPS.replace("FRAMES", str(frames))
        replaced["DIFFUSERS"] += "" if is_rl else f"train_frames = {frames}\n"
    for name, value in replaced.items():
        text = text.replace(name, str(value))
    return text


@dataclass(frozen=True)
class Run:
    """What a run left."""

    code: int
    folder: Path

    @property
    def metrics(self):
        """Lines of metrics.jsonl without times."""
        lines = map(json.loads, (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]

    def state(self, step):
        """Every tensor and number of a checkpoint, by its path."""
        from sanarl.runtime import checkpoint

        path = self.folder / "checkpoints" / f"step_{step}"
        identity = json.loads((path / "manifest.json").read_text(encoding="utf-8"))["identity"]
        return dict(leaves(checkpoint.read(path, identity), ""))


def leaves(node, path):
    if isinstance(node, dict | list | tuple):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from leaves(value, f"{path}/{key}")
    else:
        yield path, node


@pytest.fixture(scope="session")
def toml(saved_pipeline):
    """A function that gives the TOML of a tiny run of a task into a folder."""
    return lambda task, output, frames=1: preset(task, saved_pipeline(frames), output, frames)


def run(text, output, overrides, module, resume):
    """Run TOML in this process and give the ``Run`` that it made or went on with."""
    from sanarl.config import load
    from sanarl.training import run

    before = set(output.glob("*")) if output.exists() else set()
    file = output.with_suffix(".toml")
    file.write_text(text, encoding="utf-8")
    code = run.run(load(file, overrides), module, resume).exit_code
    made = set(output.glob("*")) - before
    (folder,) = made or {max(before, key=lambda p: (p / "metrics.jsonl").stat().st_mtime)}
    return Run(code, folder)


@pytest.fixture
def train(tmp_path, toml, frames):
    """A function that runs a task in this process, into a folder of that name, and gives its ``Run``."""

    def go(task, *overrides, into="run", module=None, resume="never"):
        return run(toml(task, tmp_path / into, frames), tmp_path / into, overrides, module, resume)

    return go


@pytest.fixture(scope="session")
def run_text():
    """A function that runs TOML text in this process."""
    return lambda text, output, *overrides, module=None, resume="never": run(text, output, overrides, module, resume)


@pytest.fixture(scope="session")
def on_ranks():
    """A function that runs (count, file, resume) triples one after the other, each on so many ranks; see forked.py."""
    return _on_ranks


def _on_ranks(cases):
    """Run (count, file, resume) triples one after the other."""
    arguments = [str(argument) for case in cases for argument in case]
    code = [sys.executable, str(HERE / "forked.py"), *arguments]
    process = subprocess.Popen(
        code, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, said = process.communicate(timeout=100 + 40 * len(cases))
    except subprocess.TimeoutExpired:  # ranks that wait for each other
        os.killpg(process.pid, signal.SIGKILL)
        _, said = process.communicate()
    assert process.returncode == 0, said[-4000:]


@pytest.fixture(scope="session")
def make_run():
    """A function that gives the ``Run`` in a folder."""
    return lambda folder: Run(0, folder)


@pytest.fixture(scope="session")
def baselines(tmp_path_factory, toml):
    """A function that gives the ``Run`` of a task with so many frames as it stands, made once."""
    parent = tmp_path_factory.mktemp("baseline")

    def made(task, frames):
        place = parent / f"{task}-{frames}"
        return run(toml(task, place, frames), place, (), None, "never")

    return cache(made)


@pytest.fixture(scope="module")
def baseline(baselines, frames):
    """A function that gives the ``Run`` of a task as it stands, made once; nobody may change it."""
    return lambda task: baselines(task, frames)


@pytest.fixture(scope="session")
def same():
    """A function that asserts that two runs are the same: exactly, or up to rounding."""
    import torch

    def check(found, expected, step=4, rounding=0.0):
        assert len(found.metrics) == len(expected.metrics)
        for mine, theirs in zip(found.metrics, expected.metrics, strict=True):
            assert mine.keys() == theirs.keys()
            if rounding:
                assert mine == pytest.approx(theirs, rel=20 * rounding, abs=rounding / 50)
            else:
                assert mine == theirs
        ours, wanted = found.state(step), expected.state(step)
        assert ours.keys() == wanted.keys()
        for path, value in wanted.items():
            if isinstance(value, torch.Tensor):
                # Absolute only: entries near zero carry the rounding of large ones.
                torch.testing.assert_close(ours[path], value, rtol=0, atol=rounding, msg=lambda m, p=path: f"{p}: {m}")
            elif rounding and isinstance(value, float):
                assert ours[path] == pytest.approx(value, rel=20 * rounding, abs=rounding / 50), path
            else:
                assert ours[path] == value, path

    return check
