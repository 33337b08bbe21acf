import torch

from sanarl.rollout.clips import write_mp4


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
