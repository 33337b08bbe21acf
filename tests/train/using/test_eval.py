"""sanarl eval: the numbers of the trainer's evaluation, pairs, files, and going on after a kill."""

import csv
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

HERE = Path(__file__).parent
REDNESS = f"{HERE.parent / 'redness.py'}:redness"
KILLED = f"{HERE / 'killed.py'}:redness"


@pytest.fixture(autouse=True)
def _notes(monkeypatch, tmp_path):
    monkeypatch.setenv("NOTES", str(tmp_path / "notes.txt"))


def table(folder):
    with open(folder / "scores.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("task", ["sft", "nft"])
def test_a_run_scores_what_its_evaluations_did(task, baseline, sanarl, tmp_path):
    # Reference: eval/reward of the run's metrics.jsonl before the first and after the last step.
    run = baseline(task)
    done = sanarl("eval", run.folder, "--step", "last", "--num-samples", 2, "--out", tmp_path, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found == json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    (row,) = found["rewards"].values()
    first, last = (next(m["eval/reward"] for m in run.metrics if m["step"] == step) for step in (0, 4))
    assert row["base"]["mean"] == pytest.approx(first, rel=1e-6)
    assert row["trained"]["mean"] == pytest.approx(last, rel=1e-6)


def test_pairs_and_their_interval(baseline, sanarl, tmp_path):
    # Reference: scipy's paired t-test on the samples' scores in scores.csv, averaged for each prompt.
    file = tmp_path / "prompts.txt"
    file.write_text('a red circle\na blue square\ntwo red squares\none, "quoted"\n', encoding="utf-8")
    asked = ["eval", baseline("nft").folder, "--prompts", file, "--rewards", REDNESS, "--num-samples", 3]
    done = sanarl(*asked, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert "trained - base" in done.out
    rows = table(tmp_path / "out")
    assert [row["prompt"] for row in rows][9:] == ['one, "quoted"'] * 3
    base, trained = (
        np.array([float(row[f"{arm} redness"]) for row in rows]).reshape(4, 3).mean(1) for arm in ("base", "trained")
    )
    found = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))["rewards"]["redness"]
    expected = stats.ttest_rel(trained, base)
    interval = expected.confidence_interval(0.95)
    assert (found["difference"]["low"], found["difference"]["high"]) == pytest.approx(tuple(interval))
    assert found["difference"]["mean"] == pytest.approx((trained - base).mean())
    assert (found["better"], found["worse"], found["equal"]) == ((trained > base).sum(), (trained < base).sum(), 0)
    # The base alone has the same scores.
    assert (
        sanarl("eval", run_model(baseline), "--prompts", file, *asked[4:], *as_the_run(), "--out", tmp_path / "b").code
        == 0
    )
    assert [float(row["base redness"]) for row in table(tmp_path / "b")] == [float(row["base redness"]) for row in rows]


def run_model(baseline):
    from sanarl.config import load_saved

    return load_saved(baseline("nft").folder).config.policy.model_name_or_path


def as_the_run():
    keys = ["policy.diffusers.max_prompt_length=12", 'train.param_dtype="float32"', "policy.diffusers.offload=false"]
    keys += ["policy.diffusers.inference_size=[32, 32]", "policy.diffusers.sample.num_steps=3"]
    keys += ["policy.diffusers.sample.guidance_scale=1.0", "validation.batch_size=4"]
    return [part for key in keys for part in ("--set", key)]


def test_it_goes_on_where_a_reward_failed(baseline, sanarl, tmp_path, monkeypatch):
    # Reference: the same in one go. Every sample is scored once: the notes of both goes together are those of one.
    asked = ["eval", baseline("nft").folder, "--prompts", "shapes:dev", "--num-prompts", 12, "--rewards", KILLED]
    asked += ["--batch-size", 4]
    notes = tmp_path / "notes.txt"
    assert sanarl(*asked, "--out", tmp_path / "whole", "-q").code == 0
    whole = notes.read_text(encoding="utf-8")
    notes.unlink()
    monkeypatch.setenv("LAST", "5")
    monkeypatch.setenv("HOW", "raise")
    stopped = sanarl(*asked, "--out", tmp_path / "parts")
    assert stopped.code == 2
    assert "the lights went out" in stopped.err
    assert len(notes.read_text(encoding="utf-8").splitlines()) == 16
    with open(tmp_path / "parts" / "progress.jsonl", "a", encoding="utf-8") as file:
        file.write('{"arm": "trained", "rows": [4, 5')  # a line that a crash cut short
    monkeypatch.delenv("LAST")
    again = sanarl(*asked, "--out", tmp_path / "parts")
    assert again.code == 0, again.err
    assert "16 of 24 samples were scored before" in again.err
    assert notes.read_text(encoding="utf-8") == whole
    for name in ("result.json", "scores.csv"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert "24 of 24 samples were scored before" in sanarl(*asked, "--out", tmp_path / "parts").err
    assert notes.read_text(encoding="utf-8") == whole


@pytest.mark.slow
def test_it_goes_on_after_kill_9(baseline, sanarl, tmp_path, monkeypatch):
    # Reference: the same in one go.
    asked = ["eval", baseline("nft").folder, "--prompts", "shapes:dev", "--num-prompts", 8, "--rewards", KILLED]
    asked += ["--batch-size", 4, "--out"]
    monkeypatch.setenv("NOTES", str(tmp_path / "whole.txt"))
    assert sanarl(*asked, tmp_path / "whole").code == 0
    monkeypatch.setenv("NOTES", str(tmp_path / "parts.txt"))
    command = [sys.executable, "-m", "sanarl", *map(str, asked), str(tmp_path / "parts")]
    killed = subprocess.run(command, env=os.environ | {"LAST": "3"}, capture_output=True, timeout=200, check=False)
    assert killed.returncode == -9
    assert not (tmp_path / "parts" / "result.json").exists()
    assert sanarl(*asked, tmp_path / "parts").code == 0
    for name in ("result.json", "scores.csv"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert (tmp_path / "parts.txt").read_bytes() == (tmp_path / "whole.txt").read_bytes()


def test_two_do_not_score_in_one_folder(baseline, sanarl, tmp_path):
    # Reference: the lock that the other holds, here taken by hand.
    asked = ["eval", baseline("nft").folder, "--prompts", "shapes:dev", "--rewards", REDNESS, "--num-prompts", 2]
    asked += ["--out", tmp_path, "-q"]
    with open(tmp_path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = sanarl(*asked)
    assert (done.code, done.err) == (
        2,
        f"{tmp_path}: another evaluation is at work in this folder; wait for it, or end it\n",
    )
    assert not (tmp_path / "progress.jsonl").exists()
    assert sanarl(*asked).code == 0


@pytest.mark.parametrize(
    "line", ["[]", "3", "{}", '{"arm": "x", "rows": [0], "scores": [{}]}', '{"arm": "base", "rows": 3}']
)
def test_lines_that_are_no_scores_are_left_out(baseline, sanarl, tmp_path, line):
    # Reference: the same without them.
    asked = ["eval", baseline("nft").folder, "--prompts", "shapes:dev", "--rewards", REDNESS, "--num-prompts", 2]
    asked += ["--out", tmp_path, "-q"]
    assert sanarl(*asked).code == 0
    whole = (tmp_path / "result.json").read_bytes()
    plan = (tmp_path / "progress.jsonl").read_text().splitlines()[0]
    (tmp_path / "progress.jsonl").write_text(f"{plan}\n{line}\n")
    done = sanarl(*asked)
    assert done.code == 0, done.err
    assert (tmp_path / "result.json").read_bytes() == whole


def test_scores_of_something_else_are_not_taken(baseline, sanarl, tmp_path):
    asked = ["eval", baseline("nft").folder, "--prompts", "shapes:dev", "--rewards", REDNESS, "--out", tmp_path]
    assert sanarl(*asked, "--num-prompts", 2, "-q").code == 0
    for other in (["--num-prompts", 3], ["--num-prompts", 2, "--seed", 9], ["--num-prompts", 2, "--step", 2]):
        done = sanarl(*asked, *other)
        assert done.code == 2
        assert "holds scores of something else" in done.err
