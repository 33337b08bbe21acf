import json
import os

import pytest

from sanarl.errors import UserError
from sanarl.runtime import folder
from sanarl.runtime.folder import Found, Identity, RunFolder, find


def identity(lr=0.1, seed=0):
    """Of a configuration whose seed must not change within a run, and whose learning rate may."""
    return Identity(f"seed {seed}", {"train": {"optm_lr": lr, "seed": seed}}, frozenset({"train.seed"}))


def run(parent, name, identity, steps=(), age=0):
    """A run's folder with checkpoints of these steps, ``age`` seconds old."""
    made = RunFolder(parent / name)
    made.write_config("[policy]\n", identity)
    for step in steps:
        (made.checkpoints / f"step_{step}").mkdir(parents=True)
        os.utime(made.checkpoints / f"step_{step}", (1e9 - age, 1e9 - age))
    os.utime(made.path, (1e9 - age, 1e9 - age))
    return made


def test_a_new_folder_has_a_free_name(tmp_path, monkeypatch):
    monkeypatch.setattr(folder.time, "strftime", lambda _: "now")
    names = []
    for _ in range(3):
        made = folder.new(str(tmp_path))
        assert made.path.is_dir()  # taken at once, so that two runs of the same second cannot share it
        names.append(made.path.name)
    assert names == ["now", "now-1", "now-2"]


def test_auto_takes_the_newest_run_of_the_same_configuration(tmp_path):
    run(tmp_path, "old", identity(), [5], age=100)
    newest = run(tmp_path, "new", identity(), [2, 10], age=50)
    run(tmp_path, "foreign", identity(seed=1), [50], age=10)
    run(tmp_path, "without", identity(), age=0)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text("[1]")
    assert find(str(tmp_path), identity(), "auto") == Found(newest, newest.checkpoints / "step_10", [])
    assert find(str(tmp_path), identity(seed=2), "auto") is None
    assert find(str(tmp_path / "nowhere"), identity(), "auto") is None
    assert find(str(tmp_path), identity(), "never") is None


def test_newest_is_the_run_that_saved_last(tmp_path):
    # A run that was begun earlier and continued later is the newest.
    first = run(tmp_path, "first", identity(), [5], age=100)
    run(tmp_path, "second", identity(), [5], age=50)
    (first.checkpoints / "step_9").mkdir()
    os.utime(first.checkpoints / "step_9", (1e9, 1e9))
    assert find(str(tmp_path), identity(), "auto") == Found(first, first.checkpoints / "step_9", [])


def test_a_path_is_a_run_or_one_of_its_checkpoints(tmp_path):
    made = run(tmp_path, "run", identity(), [2, 10])
    assert find("elsewhere", identity(), str(made.path)) == Found(made, made.checkpoints / "step_10", [])
    chosen = made.checkpoints / "step_2"
    assert find("elsewhere", identity(), str(chosen)) == Found(made, chosen, [])


@pytest.mark.parametrize("resume", ["auto", "path"])
def test_what_may_change_is_listed(tmp_path, resume):
    made = run(tmp_path, "run", identity(), [2])
    found = find(str(tmp_path), identity(lr=0.2), resume.replace("path", str(made.path)))
    assert found.changes == ["train.optm_lr: 0.1 -> 0.2"]


@pytest.mark.parametrize("path", ["nowhere", "empty", "empty/checkpoints/step_3"])
def test_a_path_without_checkpoint_is_refused(tmp_path, path):
    run(tmp_path, "empty", identity())
    with pytest.raises(UserError, match=r"no checkpoint there; expected a run's folder or RUN/checkpoints/step_N"):
        find("elsewhere", identity(), str(tmp_path / path))


def test_a_path_of_a_foreign_run_is_refused_with_what_differs(tmp_path):
    made = run(tmp_path, "run", identity(), [2])
    with pytest.raises(
        UserError, match=r"other settings \(then -> now\):\s+train\.seed: 0 -> 7\s+these must not change"
    ):
        find("elsewhere", identity(lr=0.5, seed=7), str(made.path))
    (made.path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json cannot be read"):
        find("elsewhere", identity(), str(made.path))


def test_what_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"train\.output_dir: .* cannot be written"):
        RunFolder(tmp_path / "file" / "run").write_config("", identity())


@pytest.mark.parametrize("tail", ["", '{"step": 4, "loss"', "\n\n", '{"loss": 1}\n', "[]\n", "7\n"])
def test_metrics_after_the_checkpoint_are_cut(tmp_path, tail):
    # Reference: the lines of steps 0 to 2, byte for byte; a line that a crash cut short goes.
    made = RunFolder(tmp_path)
    lines = [json.dumps({"step": step, "loss": 0.5}) + "\n" for step in (0, 1, 2, 3)]
    made.metrics.write_text("".join(lines) + tail)
    made.cut_records(2)
    assert made.metrics.read_text() == "".join(lines[:3])


def test_there_may_be_no_metrics_yet(tmp_path):
    RunFolder(tmp_path).cut_records(2)
    assert not RunFolder(tmp_path).metrics.exists()


def test_a_folder_is_one_process_at_a_time(tmp_path):
    made = RunFolder(tmp_path / "run")
    with made.lock(), pytest.raises(UserError, match="another process is training in this folder"):
        made.lock()
    made.lock().close()


def test_auto_does_not_pass_over_a_run_whose_settings_cannot_be_read(tmp_path):
    made = run(tmp_path, "run", identity(), [2])
    (made.path / "config.json").unlink()
    with pytest.raises(UserError, match=r"run has checkpoints, but its config\.json cannot be read"):
        find(str(tmp_path), identity(), "auto")
    assert find(str(tmp_path), identity(), "never") is None
