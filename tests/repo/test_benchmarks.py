"""Benchmarks that need a GPU, tried on the CPU with a tiny model."""

import importlib.util
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def full_size():
    spec = importlib.util.spec_from_file_location("sana_video_full_size", BENCHMARKS / "sana_video_full_size.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(folder):
    (file,) = folder.iterdir()
    return json.loads(file.read_text())["runs"]


@pytest.mark.slow
def test_every_step_of_the_full_size_benchmark_of_video(full_size, tmp_path):
    assert not full_size.main(["--tiny", "--steps", "1", "--write", str(tmp_path)])
    runs = written(tmp_path)
    assert [(run["name"], run["frames"]) for run in runs] == [
        ("sft-lora", 5),
        ("sft", 5),
        ("sft-lora-81", 9),
        ("nft", 5),
        ("flowgrpo", 5),
    ]
    for run in runs:
        assert run["finite"]
        assert run["skipped_steps"] == 0
        assert run["grad_norm"] > 0
        assert {"encode_prompts", "velocity_with_grad"} <= run["seconds_of_calls"].keys()
        assert ("decode" if run["name"] in ("nft", "flowgrpo") else "encode_media") in run["seconds_of_calls"]


def test_a_step_that_takes_too_long_is_broken_off_and_the_rest_goes_on(full_size, tmp_path, capsys):
    assert full_size.main(["--tiny", "--limit", "0.05", "--only", "sft", "nft", "--write", str(tmp_path)])
    assert [run["failed"] for run in written(tmp_path)] == ["TooLong: broken off after 0.05 s"] * 2
    assert "TooLong" in capsys.readouterr().err
