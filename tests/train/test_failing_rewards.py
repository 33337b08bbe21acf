"""Rewards that hear what they are for, and runs whose evaluation fails: nothing is lost and nothing is made twice."""

import re

import pytest

from sanarl.rewards.mix import RewardError


@pytest.fixture
def run(train, request, tmp_path, monkeypatch):
    """A function that trains with failing.py's reward in place of redness.py's."""
    calls = tmp_path / "calls"
    monkeypatch.setenv("CALLS", str(calls))
    reward = f'reward_function={{ "{request.path.parent / "failing.py"}:redness" = 1.0 }}'

    def go(task, *overrides, fail_at=0, **options):
        calls.unlink(missing_ok=True)
        monkeypatch.setenv("FAIL_AT", str(fail_at))
        tables = ("validation", "train.train_policy") if task == "nft" else ("validation",)
        return train(task, *(f"{table}.{reward}" for table in tables), *overrides, **options)

    go.calls = lambda: calls.read_text().split()
    return go


def test_training_is_scored_strictly_and_evaluation_in_full(run):
    # Reference: 6 held-out samples and 12 of training, 4 at a time; first one call before the run.
    found = run("nft", "train.max_num_steps=1")
    assert run.calls() == ["training", *["evaluation"] * 2, *["training"] * 3, *["evaluation"] * 2]
    assert found.metrics[1]["reward/avg"] == pytest.approx(found.metrics[1]["reward/mean"], abs=1e-7)
    assert found.metrics[1]["eval/avg"] == found.metrics[1]["eval/reward"] == found.metrics[1]["eval/redness"]


def test_a_dry_run_tries_the_rewards(toml, tmp_path, capsys):
    from sanarl.config import load
    from sanarl.training import run as running

    file = tmp_path / "run.toml"
    file.write_text(toml("nft", tmp_path / "out"), encoding="utf-8")
    assert running.run(load(file), None, "never", dry_run=True).exit_code == 0
    assert re.search(
        r"reward redness: \(2,\), 0 to 0, \d+\.\d\d s for media \(2, 1, 3, 32, 32\)\n", capsys.readouterr().err
    )


@pytest.mark.parametrize("task", ["sft-lora", "nft"])
@pytest.mark.parametrize("step", [2, 4])
def test_an_evaluation_that_fails_is_made_when_the_run_goes_on(task, step, run, baseline, same):
    # Reference: the run that never failed, bit by bit. Two calls for each of steps 0, 2 and 4, and one before an SFT
    # run; step 4 is the last, whose checkpoint and export are made as well.
    with pytest.raises(RewardError, match=r"reward 'redness' failed on a batch of .*\n.*no such luck"):
        run(task, fail_at=1 + step + 1)
    again = run(task, resume="auto")
    assert again.metrics == baseline(task).metrics
    same(again, baseline(task))
    log = (again.folder / "log.txt").read_text()
    assert f"stopped after step {step} of 4" in log
    assert f"step_{step} after step {step}" in log
    names = [sorted(p.name for p in (one.folder / "safetensors").iterdir()) for one in (again, baseline(task))]
    assert names[0] == names[1]
    best = [(one.folder / "best.json").read_text() for one in (again, baseline(task))]
    assert best[0] == best[1]
