import json

import pytest
import torch
from PIL import Image

from sanarl.rollout.clips import write_mp4
from sanarl.runtime.track import Sample, listed


def test_wandb_gets_clips(tmp_path, monkeypatch):
    # Reference: the files that were handed over, byte by byte, in the run's media folder.
    from sanarl.runtime.track.weights_and_biases import WandbTracker

    monkeypatch.setenv("WANDB_MODE", "offline")
    paths = [tmp_path / f"{i}.mp4" for i in range(2)]
    for i, path in enumerate(paths):
        write_mp4(torch.full((5, 3, 32, 32), i / 2), path, 8)
    tracker = WandbTracker(tmp_path, "project", None, "name", {})
    tracker.clips(1, "sample_clips", paths)
    tracker.close()
    kept = list(tmp_path.glob("wandb/offline-run-*/files/media/videos/sample_clips*.mp4"))
    assert sorted(path.read_bytes() for path in kept) == sorted(path.read_bytes() for path in paths)


@pytest.fixture
def samples(tmp_path):
    """A folder with a picture and a clip, as an evaluation writes them."""
    folder = tmp_path / "samples"
    folder.mkdir()
    Image.new("RGB", (8, 8), (200, 10, 10)).save(folder / "a.png")
    write_mp4(torch.full((5, 3, 32, 32), 0.5), folder / "b.mp4", 8)
    rows = [
        {"file": "a.png", "prompt": "red | wide\nrow", "reward": 0.5},
        {"file": "b.mp4", "prompt": "b", "reward": None},
    ]
    (folder / "index.json").write_text(json.dumps({"fps": 8, "samples": rows}))
    return folder


def test_samples_are_listed(samples):
    assert listed(samples) == [
        Sample(samples / "a.png", "red | wide\nrow", 0.5),
        Sample(samples / "b.mp4", "b", None),
    ]


@pytest.mark.slow
def test_wandb_gets_samples_and_goes_on_with_the_same_run(tmp_path, samples, monkeypatch):
    # Reference: the table file in the run's media folder; the id of the first start.
    from sanarl.runtime.track.weights_and_biases import WandbTracker

    monkeypatch.setenv("WANDB_MODE", "offline")
    known = []
    for step in (5, 3):  # a run that goes on from a checkpoint makes steps again
        tracker = WandbTracker(tmp_path, "project", None, "name", {"train": {"optm_lr": 1e-3}})
        known.append((tmp_path / "wandb_id").read_text())
        tracker.log(step, {"loss": 1.0})
        tracker.samples(step, listed(samples)[:1])
        assert tracker._run.config["train"] == {"optm_lr": 1e-3}
        tracker.close()
    assert known[0] == known[1]
    tables = sorted(tmp_path.glob("wandb/offline-run-*/files/media/table/sample_rewards*.table.json"))
    found = [json.loads(table.read_text()) for table in tables]
    assert [one["columns"] for one in found] == [["step", "prompt", "sample", "reward"]] * 2
    assert sorted(row[0] for one in found for row in one["data"]) == [3, 5]
    row = found[0]["data"][0]
    assert (row[1], row[3]) == ("red | wide\nrow", 0.5)


def test_tensorboard_gets_numbers_pictures_and_tables(tmp_path, samples):
    # Reference: read back by TensorBoard's own reader; steps after the one that a run goes on from are purged.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from sanarl.runtime.track.tensorboard import TensorBoardTracker

    tracker = TensorBoardTracker(tmp_path, {"train": {"optm_lr": 1e-3}}, 0)
    for step in (1, 2, 3):
        tracker.log(step, {"loss": float(step), "eval/reward": 0.5})
    tracker.picture(3, "samples", samples / "a.png")
    tracker.clips(3, "sample_clips", [samples / "b.mp4"])
    tracker.samples(3, listed(samples))
    tracker.close()
    again = TensorBoardTracker(tmp_path, {}, 2)
    again.log(3, {"loss": 30.0})
    again.close()
    found = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    assert [(event.step, event.value) for event in found.Scalars("loss")] == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert found.Images("samples") == []  # of step 3, which was made again
    text = found.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert '"optm_lr": 0.001' in text
