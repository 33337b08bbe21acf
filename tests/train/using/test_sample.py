"""sanarl sample: the files, what they say of themselves, and that they are what the trainer's evaluation made."""

import shutil

import av
import numpy as np
import pytest
import torch
from PIL import Image

from sanarl.rollout.signed import file_name


def opened(path):
    """Pixels and text of a PNG."""
    with Image.open(path) as image:
        return np.array(image), dict(image.text)


def pixels(folder):
    """Number of the sample -> pixels of every picture in a folder."""
    return {int(p.name.split("_")[0]): opened(p)[0] for p in sorted(folder.glob("[0-9]*.png"))}


def same(found, expected):
    assert found.keys() == expected.keys()
    for number, picture in expected.items():
        np.testing.assert_array_equal(found[number], picture)


@pytest.mark.parametrize("task", ["sft", "sft-lora", "nft"])
def test_samples_of_a_run_are_those_of_its_evaluation(task, baseline, sanarl, tmp_path):
    # Reference: the pictures that the run's evaluations wrote after steps 4, 2 and 0, pixel by pixel.
    run = baseline(task)
    for step in ("last", "2", "0"):
        number = 4 if step == "last" else int(step)
        out = tmp_path / step
        done = sanarl(
            "sample", "--run", run.folder, "--step", step, "--prompts", "validation", "--num-samples", 2, "--out", out
        )
        assert done.code == 0, done.err
        same(pixels(out), pixels(run.folder / "samples" / f"step_{number:06d}"))
    assert any((pixels(tmp_path / "last")[n] != picture).any() for n, picture in pixels(tmp_path / "0").items())


def decoded(path):
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def distance(one, other):
    """Mean distance of two clips in grey levels."""
    return np.abs(decoded(one).astype(float) - decoded(other)).mean()


@pytest.mark.parametrize("frames", [5], indirect=True)
def test_clips_of_a_run_are_those_of_its_evaluation(baseline, sanarl, tmp_path):
    # Reference: the clips that the run's first and last evaluation wrote. What the encoder gives back of equal clips
    # may differ by a few grey levels in places, less than training moved any of them.
    run = baseline("nft")
    asked = ["--run", run.folder, "--step", "last", "--prompts", "validation", "--num-samples", 2]
    done = sanarl("sample", *asked, "--compare", "--out", tmp_path)
    assert done.code == 0, done.err
    for which, step in (("base", 0), ("trained", 4)):
        found = sorted((tmp_path / which).glob("*.mp4"))
        expected = sorted((run.folder / "samples" / f"step_{step:06d}").glob("*.mp4"))
        assert len(found) == len(expected) == 6
        for mine, theirs in zip(found, expected, strict=True):
            assert distance(mine, theirs) < 0.6
    moved = [distance(tmp_path / "base" / clip.name, clip) for clip in found]
    assert min(moved) > 1.2, moved
    beside = decoded(sorted((tmp_path / "side_by_side").glob("*.mp4"))[0])
    assert beside.shape == (5, 32, 64, 3)
    with av.open(str(found[0])) as container:
        assert container.metadata["step"] == "4"


@pytest.mark.parametrize("task", ["sft", "nft"])
def test_a_checkpoint_alone_is_enough(task, baseline, sanarl, tmp_path):
    # Reference: as above.
    run = shutil.copytree(baseline(task).folder, tmp_path / "run")
    shutil.rmtree(run / "safetensors")
    out = tmp_path / "out"
    done = sanarl("sample", "--run", run, "--step", 4, "--prompts", "validation", "--num-samples", 2, "--out", out)
    assert done.code == 0, done.err
    same(pixels(out), pixels(run / "samples" / "step_000004"))


def test_base_and_trained_side_by_side(baseline, sanarl, tmp_path):
    # Reference: what the run's first and last evaluation wrote; both from the same noise.
    run = baseline("nft")
    done = sanarl(
        "sample",
        "--run",
        run.folder,
        "--step",
        "last",
        "--prompts",
        "validation",
        "--num-samples",
        2,
        "--compare",
        "--out",
        tmp_path,
    )
    assert done.code == 0, done.err
    base, trained = (pixels(run.folder / "samples" / f"step_{step:06d}") for step in (0, 4))
    same(pixels(tmp_path / "base"), base)
    same(pixels(tmp_path / "trained"), trained)
    same(pixels(tmp_path / "side_by_side"), {n: np.concatenate([base[n], trained[n]], 1) for n in base})
    assert (tmp_path / "sheet.png").is_file()


def test_a_folder_of_runs_stands_for_its_newest(baseline, sanarl, tmp_path):
    run = baseline("nft").folder
    done = sanarl("sample", "--run", run.parent, "--prompt", "a red circle", "--out", tmp_path)
    assert done.code == 0
    assert f"taking the newest, {run.name}" in done.err
    (file,) = tmp_path.glob("*.png")
    assert opened(file)[1]["adapter"].startswith(str(run))


def test_a_file_says_how_it_was_made(baseline, sanarl, tmp_path):
    # Reference: the run's TOML by hand, and the arguments; the file is drawn again from what it says.
    run = baseline("nft")
    text = "ein Kreis, größer als 圆"
    asked = ["--run", run.folder, "--step", 2, "--prompt", "a red circle", "--prompt", text, "--seed", 5]
    assert (
        sanarl("sample", *asked, "--steps", 2, "--guidance", 2, "--solver", "dpm2", "--out", tmp_path / "a").code == 0
    )
    (file,) = (tmp_path / "a").glob("0001_*.png")
    _, said = opened(file)
    assert said.pop("sanarl")
    assert said == {
        "prompt": text,
        "seed": "5",
        "sample": "1",
        "steps": "2",
        "guidance": "2",
        "solver": "dpm2",
        "flow_shift": "3",
        "size": "32x32",
        "model": run_model(run),
        "adapter": str(run.folder / "safetensors" / "step_2"),
        "step": "2",
    }
    again = [
        "--seed",
        said["seed"],
        "--steps",
        said["steps"],
        "--guidance",
        said["guidance"],
        "--solver",
        said["solver"],
    ]
    lora = [
        "--model",
        said["model"],
        "--lora",
        said["adapter"],
        "--size",
        said["size"],
        "--set",
        "policy.diffusers.max_prompt_length=12",
    ]
    lora += ["--set", 'train.param_dtype="float32"', "--set", "policy.diffusers.offload=false"]
    assert sanarl("sample", *lora, "--prompt", "-", "--prompt", text, *again, "--out", tmp_path / "b").code == 0
    np.testing.assert_array_equal(pixels(tmp_path / "b")[1], pixels(tmp_path / "a")[1])


def run_model(run):
    from sanarl.config import load_saved

    return load_saved(run.folder).config.policy.model_name_or_path


def test_clips_say_how_they_were_made(video_folder, sanarl, tmp_path):
    # Reference: the arguments.
    how = [
        "--size",
        "64x32",
        "--frames",
        5,
        "--steps",
        2,
        "--seed",
        3,
        "--set",
        "policy.diffusers.max_prompt_length=12",
    ]
    done = sanarl(
        "sample", "--model", video_folder, "--prompt", "a red circle: = \\ ; größer\n#", *how, "--out", tmp_path
    )
    assert done.code == 0, done.err
    (file,) = tmp_path.glob("*.mp4")
    with av.open(str(file)) as container:
        said = container.metadata
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert [frame.shape for frame in frames] == [(32, 64, 3)] * 5
    wanted = {
        "prompt": "a red circle: = \\ ; größer\n#",
        "seed": "3",
        "steps": "2",
        "size": "64x32",
        "frames": "5",
        "adapter": "none",
    }
    assert {name: said[name] for name in wanted} == wanted
    assert said["model"] == str(video_folder)


def test_the_embedded_model_has_its_own_settings(sanarl, tmp_path):
    # Reference: the preset tiny-image-sft-lora.
    assert (
        sanarl(
            "sample", "--model", "tiny-image", "--prompts", "shapes:dev", "--num-prompts", 2, "--out", tmp_path, "-q"
        ).code
        == 0
    )
    first, second = map(opened, sorted(tmp_path.glob("[0-9]*.png")))
    assert (first[0].shape, first[1]["steps"]) == ((64, 64, 3), "10")
    assert first[1]["prompt"] != second[1]["prompt"]


@pytest.mark.parametrize(
    "words",
    [
        ("sample", "--model", "tiny-image", "--prompt", "a red circle"),
        ("eval", "tiny-image", "--prompts", "shapes:dev", "--rewards", "shapes"),
    ],
)
def test_pictures_have_no_frames(words, sanarl, tmp_path):
    said = sanarl(*words, "--frames", 9, "--out", tmp_path / "x")
    assert said.code == 2
    assert "--frames: found 9; accepted with a model of pictures: 1, or nothing" in said.err
    assert not (tmp_path / "x").exists()


def test_names_of_files_keep_prompts_apart():
    still, moving = torch.zeros(1, 3, 8, 8), torch.zeros(5, 3, 8, 8)
    assert file_name(7, "A red circle, left of it a blue square and more", still).startswith(
        "0007_a-red-circle-left-of-it-a-blue-square"
    )
    assert file_name(7, "../../x", moving).endswith(".mp4")
    assert len({file_name(0, prompt, still) for prompt in ("ö", "ü", "")}) == 3
