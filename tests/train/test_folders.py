"""Folders of pictures from their files to trained weights."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from sanarl.cli import app

PAIRS = "sanarl.datasets.diffusers_dataset"
BUCKETS = "[[32, 32], [32, 64], [64, 32]]"


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(9):
        size = [(90, 80), (200, 90), (64, 140)][i % 3]
        Image.effect_noise(size, 90).convert("RGB").save(folder / f"{i}.png")
        (folder / f"{i}.json").write_text(json.dumps({"prompt": f"noise {'abcdefghi'[i]}"}))
    return folder


def local(folder):
    keys = ("train.train_policy", "validation")
    return [f"{key}.dataset.{part}" for key in keys for part in (f"local_dir={folder}", 'name=""')]


def test_a_prepared_folder_of_three_sizes_trains_each_pass_with_one(pictures, tmp_path, train, monkeypatch):
    from diffusers import AutoencoderDC
    from typer.testing import CliRunner

    shapes, encode = [], AutoencoderDC.encode

    def watched(self, x, *args, **named):
        shapes.append(tuple(x.shape))
        return encode(self, x, *args, **named)

    monkeypatch.setattr(AutoencoderDC, "encode", watched)
    out = tmp_path / "out"
    buckets = "32x32,32x64,64x32"
    result = CliRunner().invoke(app, ["dataset", "prepare", str(pictures), "--out", str(out), "--buckets", buckets])
    assert result.exit_code == 0, result.output
    found = train("sft-lora", *local(out), f"data.buckets={BUCKETS}", "validation.enable=false", module=PAIRS)
    assert found.metrics[-1]["step"] == 4
    assert {shape[2:] for shape in shapes} == {(32, 32), (32, 64), (64, 32)}
    assert sum(shape[0] for shape in shapes) == 4 * 6  # every sample of four steps once
    assert max(shape[0] for shape in shapes) <= 3  # mini_batch


def test_what_is_left_out_is_said(pictures, train):
    (pictures / "4.png").write_bytes(b"")
    (pictures / "notes.md").write_text("")
    found = train("sft-lora", *local(pictures), "data.on_bad=skip", "validation.enable=false", module=PAIRS)
    log = found.folder.joinpath("log.txt").read_text()
    assert "8 items" in log
    assert "1 of 9 pairs skipped (1 bad)" in log
    assert "1 files left out (1 .md): notes.md" in log
    assert "caption words  2 to 2, median 2" in log  # as `sanarl dataset check` says
    assert "cropped to     32x32: 8" in log


@pytest.mark.slow
def test_two_ranks_agree_on_what_is_left(pictures, tmp_path, toml, run_text, on_ranks):
    """Reference: one rank, with the damaged files deleted."""
    for name in ("1", "4"):
        (pictures / f"{name}.png").write_bytes(b"damaged")

    def text(output):
        whole = toml("sft-lora", output).replace('dataset.name = "shapes"', f'dataset.local_dir = "{pictures}"')
        return f'{whole}\n[data]\non_bad = "skip"\n'

    file = tmp_path / "two.toml"
    file.write_text(text(tmp_path / "two"), encoding="utf-8")
    on_ranks([(2, file, "never")])
    (folder,) = (tmp_path / "two").iterdir()
    two = [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines() if "loss" in line]
    for name in ("1", "4"):
        (pictures / f"{name}.png").unlink()
        (pictures / f"{name}.json").unlink()
    one = run_text(text(tmp_path / "one"), tmp_path / "one", module=PAIRS)
    assert two == pytest.approx([line["loss"] for line in one.metrics if "loss" in line], rel=1e-4)


@pytest.mark.slow
def test_ranks_that_find_different_files_stop(pictures, tmp_path, toml):
    """Under "skip" a file that only one machine cannot read must not let the ranks train on different items."""
    shutil.copytree(pictures, tmp_path / "other")
    (tmp_path / "other" / "4.png").write_bytes(b"damaged")
    file = tmp_path / "two.toml"
    text = toml("sft-lora", tmp_path / "out").replace('dataset.name = "shapes"', f'dataset.local_dir = "{pictures}"')
    file.write_text(f'{text}\n[data]\non_bad = "skip"\n', encoding="utf-8")
    script = Path(__file__).with_name("two_folders.py")
    command = [sys.executable, script, file, pictures, tmp_path / "other"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert process.returncode == 0, process.stderr[-4000:]
    assert process.stdout.strip() == (
        "the ranks found different items (9 on rank 0, 8 on rank 1); every machine needs the same files"
    )
    assert not (tmp_path / "out").exists()


REWARD = """
import torch

def counted(media, prompts, metadata):
    for prompt, one in zip(prompts, metadata, strict=True):
        assert one["prompt"] == prompt, (one, prompt)
    return torch.tensor([float(one["include"][0]["count"]) for one in metadata])
"""


def test_the_metadata_of_geneval_reaches_the_reward(train, tmp_path, monkeypatch):
    """A reward that reads the lines' own fields; the set is made here, nothing is fetched."""
    monkeypatch.setenv("SANARL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "count.py").write_text(REWARD)
    found = train(
        "nft",
        "train.train_policy.dataset.name=geneval",
        "validation.enable=false",
        "train.max_num_steps=1",
        f'train.train_policy.reward_function={{ "{tmp_path / "count.py"}:counted" = 1.0 }}',
        module="sanarl.datasets.diffusion_nft",
    )
    assert 1 <= found.metrics[0]["reward/mean"] <= 4
    assert found.metrics[0]["zero_std_ratio"] == 1  # the count is the prompt's, not the picture's
    assert "geneval: objects, counts" in (found.folder / "log.txt").read_text()


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
    from clips import write

    folder = tmp_path_factory.mktemp("clips")
    for i, (fps, rotation) in enumerate([(24, None), (30, 90), (60, None), (15, 180)]):
        write(folder / f"{i}.mp4", fps, fps=fps, size=(64, 96), rotation=rotation)
        (folder / f"{i}.txt").write_text(f"clip {'abcd'[i]}")
    return folder


def test_videos_train(clips, tmp_path, toml, run_text):
    """mp4 files of several rates, two of them rotated, through the loop of a video model."""
    keys = [
        *local(clips),
        "validation.enable=false",
        "policy.diffusers.inference_size=[64, 64]",
        "train.train_batch_per_replica=4",
        "train.max_num_steps=2",
    ]
    found = run_text(toml("sft-lora", tmp_path / "out", 5), tmp_path / "out", *keys, module=PAIRS)
    assert [line["step"] for line in found.metrics] == [1, 2]


def test_videos_of_two_shapes_train_each_pass_with_one(clips, tmp_path, toml, run_text, monkeypatch):
    """Two clips lie, two stand (they are rotated): a bucket of (frames, height, width) each."""
    from diffusers import AutoencoderKLWan

    shapes, encode = [], AutoencoderKLWan.encode
    monkeypatch.setattr(AutoencoderKLWan, "encode", lambda self, x: (shapes.append(tuple(x.shape)), encode(self, x))[1])
    keys = [*local(clips), "validation.enable=false", "data.buckets=[[32, 64], [64, 32]]", "train.max_num_steps=2"]
    found = run_text(toml("sft-lora", tmp_path / "out", 5), tmp_path / "out", *keys, module=PAIRS)
    assert found.metrics[-1]["step"] == 2
    assert {shape[1:] for shape in shapes} == {(3, 5, 32, 64), (3, 5, 64, 32)}
    assert sum(shape[0] for shape in shapes) == 2 * 6  # every sample of two steps once
    assert max(shape[0] for shape in shapes) <= 3  # mini_batch


def samples_of(count):
    """Keys of a short run, in one step of ``count`` samples."""
    return [f"train.train_batch_per_replica={count}", f"train.train_policy.mini_batch={count}", "logging.logger=[]"]


def run_preset(name, tmp_path, keys, module=None):
    """Lines of the metrics of a shipped preset, with ``--set``."""
    from sanarl.config import load
    from sanarl.training import run

    keys = [*keys, f"train.output_dir={tmp_path / 'out'}", "train.ckpt.enable_checkpoint=false"]
    outcome = run.run(load(name, keys), module, "never")
    assert outcome.exit_code == 0
    return [json.loads(line) for line in (outcome.folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["tiny-image-sft-lora", "tiny-video-sft"])
def test_the_embedded_models_learn_files_by_heart(preset, tmp_path, pictures, clips):
    """The packaged weights on files of this test: a few of them over and over, and the loss falls."""
    folder = clips if "video" in preset else pictures
    if "video" not in preset:
        for number in range(4, 9):
            (folder / f"{number}.png").unlink()
            (folder / f"{number}.json").unlink()
    keys = [*local(folder), "validation.enable=false", *samples_of(4), "train.max_num_steps=12"]
    keys += ["policy.diffusers.fps=4", "data.short_clips=loop"] if "video" in preset else []
    losses = [line["loss"] for line in run_preset(preset, tmp_path, [*keys, "logging.log_interval=1"], PAIRS)]
    assert len(losses) == 12
    assert sum(losses[-3:]) < sum(losses[:3])


VIDPROM_REWARD = """
def red(media, prompts, metadata):
    assert all(prompt.startswith("a video of thing") for prompt in prompts), prompts
    return media[:, :, 0].mean((1, 2, 3))
"""


@pytest.mark.slow
def test_the_video_preset_trains_on_vidprom_with_one_key(tmp_path, monkeypatch):
    """sana-video-nft as it stands, on the tiny model: ``dataset.name`` is the one key that is about the data."""
    from sanarl.data import fetch, vidprom

    monkeypatch.setenv("SANARL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    rows = [f"{i},a video of thing number {i} at night,t{',0.0' * len(vidprom.SCORES)}" for i in range(40)]
    (tmp_path / "VidProM_unique.csv").write_text("\n".join([f"uuid,prompt,time,{','.join(vidprom.SCORES)}", *rows]))
    fetch.bring("vidprom", None, tmp_path / "VidProM_unique.csv")
    (tmp_path / "reward.py").write_text(VIDPROM_REWARD)
    smaller = [
        "policy.model_name_or_path=tiny-video",
        "policy.diffusers.max_prompt_length=16",
        "policy.diffusers.inference_size=[64, 64]",
        "policy.diffusers.inference_frames=9",
        "policy.diffusers.dtype=float32",
        "policy.diffusers.sample.num_steps=2",
        "policy.diffusers.sample.eval_num_steps=2",
        "guards.enable=false",
        "rollout.n_generation=2",
        "train.param_dtype=float32",
        "train.max_num_steps=1",
        "train.train_policy.use_remote_reward=false",
        f'train.train_policy.reward_function={{ "{tmp_path / "reward.py"}:red" = 1.0 }}',
        *samples_of(4),
    ]
    lines = run_preset("sana-video-nft", tmp_path, ["train.train_policy.dataset.name=vidprom", *smaller])
    assert [line["step"] for line in lines] == [1]
    assert 0 < lines[0]["reward/mean"] < 1
