"""Runs whose clips start from a picture: their data, previews, exports and samples."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from diffusers import SanaImageToVideoPipeline
from PIL import Image
from safetensors.torch import load_file

from sanarl.data.module import load
from sanarl.datasets.shapes import get_val_dataset
from sanarl.errors import UserError

START = "policy.diffusers.image_to_video=true"


@pytest.fixture(scope="module")
def frames():
    """Every run of this module is of clips."""
    return 5


@pytest.fixture(scope="module")
def started(toml, run_text, tmp_path_factory):
    """Runs of both kinds of fine-tuning: task -> Run."""
    parent = tmp_path_factory.mktemp("starts")
    return {
        task: run_text(toml(task, parent / task, 5), parent / task, START, "train.max_num_steps=2")
        for task in ("sft", "sft-lora")
    }


def test_a_run_leaves_what_diffusers_loads(started):
    # Reference: the moving average of the checkpoint, bit by bit.
    for task, run in started.items():
        assert run.code == 0
        assert [line["step"] for line in run.metrics] == [0, 1, 2]
        assert all(line["loss"] > 0 for line in run.metrics[1:])
        folder = run.folder / "safetensors" / "step_2"
        if task == "sft":
            pipeline = SanaImageToVideoPipeline.from_pretrained(folder)
            saved = dict(pipeline.transformer.named_parameters())
        else:
            saved = load_file(folder / "pytorch_lora_weights.safetensors")
            assert "load_image" in (folder / "README.md").read_text()
        state = run.state(2)
        names = [p.rpartition("/")[2] for p in state if p.startswith("/policy/sets/learner/")]
        for place, name in enumerate(names):
            kept = saved[name if task == "sft" else "transformer." + name.replace(".default.", ".")]
            assert torch.equal(kept, state[f"/ema/values/{place}"])


def test_previews_start_from_the_held_out_first_frames(started, make_sana, load_config):
    # Reference: the held-out frame through the autoencoder and back, as the first frame of what was written.
    import av

    run = started["sft-lora"]
    config = load_config((run.folder / "config.toml").read_text(), START).config
    model = make_sana(size=(32, 32), flow_shift=3.0)
    starts = [get_val_dataset(config)[i]["media"] for i in range(3)]
    files = sorted((run.folder / "samples" / "step_000002").glob("*.mp4"))
    assert len(files) == 6  # 3 prompts of 2 samples
    for number, file in enumerate(files):
        with av.open(str(file)) as clip:
            shown = torch.from_numpy(next(clip.decode(video=0)).to_ndarray(format="rgb24")).float() / 255
        wanted = model.decode(model.encode_media(starts[number // 2][None], 1))[0, 0].permute(1, 2, 0)
        assert (shown - wanted).abs().mean() < 0.02  # H.264


def test_a_data_set_without_frames_to_start_from_is_refused(train, tmp_path):
    module = tmp_path / "data.py"
    module.write_text(
        "from sanarl.datasets.shapes import get_dataset\n"
        "def get_val_dataset(config):\n    return [{'prompt': 'a red circle moving up'}]\n"
    )
    with pytest.raises(UserError, match=r"get_val_dataset: item 0, key 'media': found the keys \['prompt'\]"):
        train("sft-lora", START, module=str(module))


def test_a_folder_gives_first_frames(tmp_path, load_config, toml):
    # Reference: the first frame of the file, which gets lighter.
    from sanarl.rollout.clips import write_mp4

    write_mp4(torch.linspace(0.2, 1, 9)[:, None, None, None].expand(9, 3, 32, 32), tmp_path / "clip.mp4", 8)
    (tmp_path / "clip.json").write_text(json.dumps({"prompt": "it gets light"}))
    keys = [f'validation.dataset.local_dir="{tmp_path}"', 'validation.dataset.name=""', START]
    config = load_config(toml("sft-lora", tmp_path / "out", 5), *keys).config
    (item,) = load("sanarl.datasets.diffusers_dataset").validation(config)
    assert item["prompt"] == "it gets light"
    assert item["first"].shape == (1, 3, 32, 32)
    first = item["first"].float() / (255 if item["first"].dtype == torch.uint8 else 1)
    assert first.mean() == pytest.approx(0.2, abs=0.02)


def test_sampling_starts_from_a_picture(started, tmp_path, monkeypatch, capsys):
    from sanarl import cli

    def sample(*arguments):
        run = started["sft-lora"].folder
        monkeypatch.setattr(sys, "argv", ["sanarl", "sample", "--run", str(run), "--out", str(tmp_path), *arguments])
        try:
            cli.main()
        except SystemExit as stop:
            return int(stop.code or 0), capsys.readouterr().err
        return 0, ""

    picture = tmp_path / "first.png"
    Image.new("RGB", (50, 50), (255, 0, 0)).save(picture)
    assert sample("--prompt", "a red circle moving up", "--image", str(picture))[0] == 0
    assert len(list(Path(tmp_path).glob("*.mp4"))) == 1
    assert sample("--prompts", "validation")[0] == 0
    code, said = sample("--prompt", "a red circle moving up")
    assert code == 2
    assert "name it with --image" in said


def test_the_cards_code_runs(started, tmp_path, monkeypatch):
    # What it shows is a clip of the run's size; writing it is diffusers' business.
    from diffusers import utils

    folder, shown = started["sft"].folder / "safetensors" / "step_2", []
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    Image.new("RGB", (40, 40), (255, 0, 0)).save(tmp_path / "first_frame.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(utils, "export_to_video", lambda clip, path, fps: shown.append((len(clip), path, fps)))
    exec(code.replace("PATH", str(folder)), {})
    assert shown == [(5, "clip.mp4", 8)]
