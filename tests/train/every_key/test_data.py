"""[data]: each case shows its key being honoured by the dataset modules that ship."""

import json
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from sanarl.data.module import load as load_module
from sanarl.errors import UserError

sys.path.insert(0, str(Path(__file__).parents[2] / "data"))
from clips import numbers, write  # lies in another folder

honours = pytest.mark.honours
PAIRS = "sanarl.datasets.diffusers_dataset"
PROMPTS = "sanarl.datasets.diffusion_nft"
DATASET = "train.train_policy.dataset"


def pair(folder, name, image, **caption):
    folder.mkdir(exist_ok=True)
    image.save(folder / f"{name}.png")
    (folder / f"{name}.json").write_text(json.dumps(caption or {"prompt": name}))


def items(lab, task, *keys, module=PAIRS):
    return load_module(module).train(lab.loaded(task, *keys).config)


@honours("data.on_bad")
def test_bad_pairs(lab, tmp_path):
    for name in ("a", "b", "c"):
        pair(tmp_path, name, Image.new("RGB", (64, 64)))
    (tmp_path / "b.png").write_bytes(b"")
    keys = ["sft-lora", f"{DATASET}.local_dir={tmp_path}", f'{DATASET}.name=""']
    with pytest.raises(UserError, match="1 of 3 pictures cannot be read"):
        items(lab, *keys)
    found = items(lab, *keys, "data.on_bad=skip")
    assert [item["prompt"] for item in found] == ["a", "c"]
    assert found.notes[0].endswith("1 of 3 pairs skipped (1 bad)")


@honours("data.caption_keys")
def test_names_of_captions(lab, tmp_path):
    pair(tmp_path, "a", Image.new("RGB", (64, 64)), text="of text", caption="of caption")
    keys = ["sft-lora", f"{DATASET}.local_dir={tmp_path}", f'{DATASET}.name=""']
    with pytest.raises(UserError, match="an object with the key 'prompt'"):
        items(lab, *keys)
    assert items(lab, *keys, 'data.caption_keys=["caption", "text"]')[0]["prompt"] == "of caption"
    with pytest.raises(UserError, match="an object with the key 'prompt'"):
        items(lab, "nft", *keys[1:])
    assert items(lab, "nft", *keys[1:], 'data.caption_keys=["text"]')[0]["prompt"] == "of text"


@honours("data.alpha_colour")
@pytest.mark.parametrize(("text", "expected"), [("#ffffff", (255, 255, 255)), ("#0A00ff", (10, 0, 255))])
def test_what_shows_through(lab, tmp_path, text, expected):
    pair(tmp_path, "a", Image.new("RGBA", (64, 64), (7, 7, 7, 0)))
    keys = [f"{DATASET}.local_dir={tmp_path}", f'{DATASET}.name=""', f'data.alpha_colour="{text}"']
    media = items(lab, "sft-lora", *keys)[0]["media"]
    assert (media[0, :, 5, 5] * 255).round().tolist() == list(expected)


@honours("data.buckets")
@pytest.mark.parametrize(
    ("buckets", "shapes"),
    [
        ("false", [(64, 64), (64, 64), (64, 64)]),
        ("[[64, 64], [64, 128], [128, 64]]", [(64, 64), (64, 128), (128, 64)]),
        ("true", [(64, 64), (64, 64), (64, 64)]),  # 64 x 64 leaves no room for other cells of 32
    ],
)
def test_sizes(lab, tmp_path, buckets, shapes):
    for name, size in (("a", (90, 100)), ("b", (300, 130)), ("c", (100, 300))):
        pair(tmp_path, name, Image.new("RGB", size))
    keys = [f"{DATASET}.local_dir={tmp_path}", f'{DATASET}.name=""', "policy.diffusers.inference_size=[64, 64]"]
    found = items(lab, "sft-lora", *keys, f"data.buckets={buckets}")
    assert [tuple(item["media"].shape[2:]) for item in found] == shapes


VIDEO = ("policy.diffusers.is_video=true", "policy.diffusers.train_frames=5", "policy.diffusers.fps=8")


@honours("data.short_clips")
def test_videos_that_are_too_short(lab, tmp_path):
    for name, frames in (("a", 3), ("b", 9)):
        write(tmp_path / f"{name}.mp4", frames, fps=8, size=(64, 64))
        (tmp_path / f"{name}.txt").write_text(name)
    keys = [f"{DATASET}.local_dir={tmp_path}", f'{DATASET}.name=""', *VIDEO]
    with pytest.raises(UserError, match="1 of 2 videos cannot be read"):
        items(lab, "sft-lora", *keys)
    assert [i["prompt"] for i in items(lab, "sft-lora", *keys, "data.short_clips=skip")] == ["b"]
    for policy, expected in (("loop", [0, 1, 2, 0, 1]), ("pad", [0, 1, 2, 2, 2])):
        found = items(lab, "sft-lora", *keys, f"data.short_clips={policy}")
        assert numbers(found[0]["media"]) == expected
        assert numbers(found[1]["media"]) == [0, 1, 2, 3, 4]


@honours("data.reader")
def test_prompt_sets(lab, tmp_path):
    (tmp_path / "train.txt").write_text("of the text\n")
    (tmp_path / "train_metadata.jsonl").write_text('{"prompt": "of the lines", "tag": "x"}\n')
    keys = ["nft", f"{DATASET}.local_dir={tmp_path}", f'{DATASET}.name=""']
    with pytest.raises(UserError, match="found both"):
        items(lab, *keys, module=PROMPTS)
    one = items(lab, *keys, "data.reader=general_ocr", module=PROMPTS)
    assert list(one) == [{"prompt": "of the text", "metadata": {}}]
    two = items(lab, *keys, "data.reader=geneval", module=PROMPTS)
    assert two[0]["metadata"]["tag"] == "x"


def test_a_picture_is_what_training_takes(lab, tmp_path):
    pair(tmp_path, "a", Image.new("RGB", (64, 64), (255, 0, 0)))
    with lab.parts("sft-lora", f"{DATASET}.local_dir={tmp_path}", f'{DATASET}.name=""', module=PAIRS) as made:
        media = made.loader().take(0, range(1))[0]["media"]
    assert torch.equal(media[0, :, 0, 0], torch.tensor([255, 0, 0], dtype=torch.uint8))


@honours("data.cache")
def test_a_cache(lab, tmp_path):
    keys = ("sft-lora", "train.max_num_steps=1")
    plain = lab.fresh(*keys, module="sanarl.datasets.shapes")
    first = lab.fresh(*keys, f"data.cache={tmp_path / 'cache'}", module="sanarl.datasets.shapes")
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").rglob("*.safetensors")}
    assert len(files) > 6  # pictures and prompts
    assert first.metrics[0]["loss"] == pytest.approx(plain.metrics[0]["loss"], rel=1e-5)
    lab.fresh(*keys, f"data.cache={tmp_path / 'cache'}", module="sanarl.datasets.shapes")
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").rglob("*.safetensors")} == files


def test_what_is_said_of_keys_that_a_task_has_no_use_for(lab):
    keys = ("data.cache=x", "data.buckets=true", 'data.alpha_colour="#000000"', "data.short_clips=pad")
    assert set(lab.idle("nft", *keys)) == {key.partition("=")[0] for key in keys}
    assert [key for key in lab.idle("sft-lora", *keys) if key.startswith("data.")] == ["data.short_clips"]


@pytest.mark.parametrize("bad", ['"white"', '"#fff"', '"#gggggg"'])
def test_colours_that_are_none(lab, bad):
    from sanarl.config import ConfigError

    with pytest.raises(ConfigError, match=r"data\.alpha_colour"):
        lab.loaded("sft-lora", f"data.alpha_colour={bad}")
