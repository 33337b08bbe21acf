"""The dataset modules that ship: what they give for a configuration, and the page for each way that it can be wrong."""

import json

import pytest
import torch
from PIL import Image

from sanarl.config import load as load_config
from sanarl.data.module import load
from sanarl.data.prompts import read_metadata, read_prompts
from sanarl.errors import UserError
from sanarl.shapes import captions, clips, motion, scoring

TRAIN, VALIDATION = "train.train_policy.dataset", "validation.dataset"


def config(preset, **settings):
    overrides = [
        f"{k.replace('__', '.')}={json.dumps(str(v) if not isinstance(v, list | int) else v)}"
        for k, v in settings.items()
    ]
    return load_config(preset, overrides).config


def sft(**settings):
    return config("tiny-image-sft", **settings)


def nft(**settings):
    return config("tiny-image-nft", **settings)


def page(call, *arguments):
    with pytest.raises(UserError) as caught:
        call(*arguments)
    return str(caught.value)


# ------------------------------------------------------------------ shapes


def test_shapes_pictures_show_what_they_say():
    """Reference: the reward of the shapes world."""
    items = load("sanarl.datasets.shapes").train(sft())
    assert len(items) == 4096
    train = {p for kind in captions.split("train").values() for p in kind}
    for i in (0, 1, 2, 2000, -1):
        item = items[i]
        assert item["prompt"] in train
        picture = (item["media"][0] * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        assert scoring.score(picture, item["prompt"])["strict"] == 1


def test_shapes_pictures_depend_on_their_number_alone():
    one, two = (load("sanarl.datasets.shapes").train(sft()) for _ in range(2))
    first, later = one[7], [two[i] for i in (9, 3, 7)][-1]
    assert first["prompt"] == later["prompt"]
    assert torch.equal(first["media"], later["media"])
    assert len({one[i]["prompt"] for i in range(200)}) > 100


def test_shapes_prompts_come_in_the_mix_and_from_the_training_split():
    items = list(load("sanarl.datasets.shapes").train(nft()))
    assert len(items) == 2048
    train = {p for kind in captions.split("train").values() for p in kind}
    assert {item["prompt"] for item in items} <= train
    for kind, share in captions.MIX.items():  # five standard deviations of a binomial share are below 0.06
        assert sum(captions.parse(i["prompt"]).kind == kind for i in items) / 2048 == pytest.approx(share, abs=0.06)


@pytest.mark.parametrize("split", ["dev", "test"])
def test_shapes_validation_is_balanced_and_held_out(split):
    settings = nft(validation__dataset__split=split, validation__num_prompts=40)
    items = load("sanarl.datasets.shapes").validation(settings)
    assert [item["prompt"] for item in items] == captions.balanced(split, 40)


def test_shapes_faults():
    module = load("sanarl.datasets.shapes")
    assert "found 'tset'; accepted for shapes: 'dev', 'test'" in page(
        module.validation, nft(validation__dataset__split="tset")
    )
    assert "accepted for shapes: 'train'" in page(module.train, nft(train__train_policy__dataset__split="test"))
    wide = sft(policy__diffusers__inference_size=[64, 96])
    assert "found [64, 96]; accepted for shapes: a square" in page(module.train, wide)


# ------------------------------------------------------------------ shapes in motion


@pytest.mark.parametrize("frames", [9, 13])
def test_shapes_clips_show_what_they_say(frames):
    """Reference: the reward of the world in motion."""
    items = load("sanarl.datasets.shapes").train(config("tiny-video-sft", policy__diffusers__train_frames=frames))
    assert len(items) == 4096
    train = {p for kind in motion.split("train").values() for p in kind}
    for i in (0, 1, 2, 2000, -1):
        item = items[i]
        assert item["prompt"] in train
        assert item["media"].shape == (frames, 3, 64, 64)
        clip = (item["media"] * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
        assert clips.score(clip, item["prompt"])["strict"] == 1


def test_shapes_captions_of_video_are_those_of_motion():
    items = list(load("sanarl.datasets.shapes").train(config("tiny-video-nft")))
    train = {p for kind in motion.split("train").values() for p in kind}
    assert len(items) == 2048
    assert {item["prompt"] for item in items} <= train
    held_out = load("sanarl.datasets.shapes").validation(config("tiny-video-nft", validation__num_prompts=40))
    assert [item["prompt"] for item in held_out] == motion.balanced("test", 40)


def test_shapes_in_motion_need_frames():
    still = config("tiny-video-sft", policy__diffusers__train_frames=1)
    assert "train_frames: found 1; accepted for shapes in motion: 5 or more" in page(
        load("sanarl.datasets.shapes").train, still
    )


# ------------------------------------------------------------------ folders of pictures


def fill(folder, prompts):
    folder.mkdir()
    for i, prompt in enumerate(prompts):
        Image.new("RGB", (80, 100), (255, 0, 0)).save(folder / f"{i}.jpg")
        (folder / f"{i}.json").write_text(json.dumps({"prompt": prompt}))
    return folder


def test_a_folder_of_pairs_serves_every_task(tmp_path):
    folder = fill(tmp_path / "pairs", ["a", "b"])
    (fill(tmp_path / "held", ["c"]) / "0.jpg").unlink()
    settings = {"train__train_policy__dataset__local_dir": folder, "validation__dataset__local_dir": tmp_path / "held"}
    module = load("sanarl.datasets.diffusers_dataset")
    pictures = module.train(sft(**settings))
    assert [item["prompt"] for item in pictures] == ["a", "b"]
    assert pictures[0]["media"].shape == (1, 3, 64, 64)
    assert list(module.train(nft(**settings))) == [{"prompt": p, "metadata": {}} for p in "ab"]
    assert list(module.validation(sft(**settings))) == [{"prompt": "c", "metadata": {}}]
    named = sft(train__train_policy__dataset__name=folder)
    assert len(module.train(named)) == 2


def test_a_list_of_prompts_serves_validation(tmp_path):
    module = load("sanarl.datasets.diffusers_dataset")
    (tmp_path / "held.txt").write_text("one\n\ntwo\n")
    (tmp_path / "held.jsonl").write_text('{"prompt": "three", "tag": "x"}\n')
    found = [module.validation(sft(validation__dataset__local_dir=tmp_path / f"held.{s}")) for s in ("txt", "jsonl")]
    assert [[item["prompt"] for item in items] for items in found] == [["one", "two"], ["three"]]
    assert found[1][0]["metadata"]["tag"] == "x"
    (tmp_path / "held.txt").write_text("")
    text = page(module.validation, sft(validation__dataset__local_dir=tmp_path / "held.txt"))
    assert text.startswith(f"{VALIDATION}.local_dir: {tmp_path}/held.txt: found no prompt")


def test_folder_faults_name_the_key(tmp_path):
    module = load("cosmos_rl.tools.dataset.diffusers_dataset")

    def train(folder):
        return page(module.train, sft(train__train_policy__dataset__local_dir=folder))

    assert page(module.train, sft()).startswith(f"{TRAIN}.local_dir is not set (and name 'shapes' is no folder)")
    assert train("local_dir").startswith(f"{TRAIN}.local_dir: found the placeholder 'local_dir'; accepted: a folder")
    assert train(tmp_path / "no").startswith(f"{TRAIN}.local_dir: found nothing at {tmp_path}/no")
    (tmp_path / "empty").mkdir()
    assert train(tmp_path / "empty").startswith(f"{TRAIN}.local_dir: {tmp_path}/empty: found no files; accepted")
    (fill(tmp_path / "bad", ["a"]) / "0.jpg").write_bytes(b"not a picture")
    assert "1 of 1 pictures cannot be read" in train(tmp_path / "bad")
    text = page(module.validation, sft(validation__dataset__local_dir="local_validation_dir"))
    assert text.startswith(f"{VALIDATION}.local_dir: found the placeholder 'local_validation_dir'")


@pytest.mark.parametrize("preset", ["sana-image-sft", "sana-image-sft-lora"])
def test_the_placeholders_of_the_shipped_presets_are_explained(preset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = load("sanarl.datasets.diffusers_dataset")
    for call, key in ((module.train, TRAIN), (module.validation, VALIDATION)):
        assert page(call, load_config(preset).config).startswith(f"{key}.local_dir: found the placeholder")


# ------------------------------------------------------------------ prompt sets


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "datasets" / "mine"
    folder.mkdir(parents=True)
    (folder / "train.txt").write_bytes("\ufeffa cat\r\n\r\n  naïve café 🎨\u2028x \r\nlast".encode())
    (folder / "test.txt").write_text("held out\n")
    geneval = tmp_path / "datasets" / "geneval"
    geneval.mkdir()
    line = {"tag": "counting", "include": [{"class": "cat", "count": 2}], "prompt": "two cats"}
    (geneval / "train_metadata.jsonl").write_text(json.dumps(line) + "\n\n" + json.dumps(line) + "\n")
    return tmp_path


def items(**settings):
    return list(
        load("cosmos_rl.tools.dataset.diffusion_nft").train(
            nft(**{f"train__train_policy__dataset__{k}": v for k, v in settings.items()})
        )
    )


def test_a_prompt_set_by_name_by_folder_and_by_path(root):
    prompts = ["a cat", "naïve café 🎨\u2028x", "last"]
    expected = [{"prompt": p, "metadata": {}} for p in prompts]
    assert items(name="mine") == expected
    assert items(name="mine", local_dir=root / "datasets") == expected
    assert items(name="", local_dir=root / "datasets" / "mine") == expected
    assert items(name=str(root / "datasets" / "mine")) == expected
    held_out = {"prompt": "held out", "metadata": {}}
    assert items(name="mine", split="test") == [held_out]
    assert items(name="mine", split=["train", "test"]) == [*expected, held_out]
    module = load("sanarl.datasets.diffusion_nft")
    assert list(module.validation(nft(validation__dataset__name="mine"))) == [held_out]


def test_metadata_travels_whole(root):
    found = items(name="geneval")
    assert [item["prompt"] for item in found] == ["two cats"] * 2
    assert found[0]["metadata"]["include"] == [{"class": "cat", "count": 2}]
    assert (root / "datasets" / "geneval").is_dir()


def test_prompt_set_faults(root):
    module = load("sanarl.datasets.diffusion_nft")

    def train(**settings):
        return page(module.train, nft(**{f"train__train_policy__dataset__{k}": v for k, v in settings.items()}))

    text = train(name="mime")
    assert text.startswith(f"{TRAIN}: there is no prompt set 'mime'; did you mean 'mine'?")
    assert "looked for the folders: datasets/mime" in text
    assert "neither name nor local_dir is set" in train(name="")
    text = train(name="mine", split="dev")
    assert f"{TRAIN}.split 'dev': found test.txt, train.txt in datasets/mine; accepted: dev.txt or" in text
    (root / "datasets" / "mine" / "train.txt").write_text(" \n\n")
    assert "datasets/mine/train.txt: found no prompt" in train(name="mine")


def test_bad_lines_are_all_named(tmp_path):
    file = tmp_path / "train_metadata.jsonl"
    file.write_text('{"prompt": "fine"}\n{oops\n[1]\n{"text": "a"}\n{"prompt": ""}\n' + "[" * 100_000 + "\n")
    text = page(read_metadata, file)
    assert [f"{file}:{n}:" in text for n in range(1, 7)] == [False, True, True, True, True, True]
    assert text.startswith(f"{file}: 5 unusable lines")
    file.write_bytes(b"fine\n\xff\xfe bad\n")
    assert page(read_prompts, file).startswith(f"{file}:2: found byte 0xff, which is not UTF-8")
    assert "cannot be read: Is a directory" in page(read_prompts, tmp_path)
