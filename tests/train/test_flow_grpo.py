"""Flow-GRPO in the loop: what is checked at run time, and what a plan says about memory."""

import pytest

from sanarl.config import load
from sanarl.rollout import stochastic
from sanarl.runtime.memory import free_memory
from sanarl.training import run

ONE_STEP = "train.max_num_steps=1", "validation.enable=false"


def test_records_are_confirmed_by_the_first_update(train):
    # Reference: the same kernels on the CPU, so ratios are 1 up to the rounding of other batch sizes, in every step:
    # the learner samples.
    lines = train("flowgrpo", "train.max_num_steps=2", "validation.enable=false").metrics
    assert len(lines) == 2
    for line in lines:
        assert line["ratio_error"] < 1e-5
        assert line["recomputed_log_probs"] == 0
        assert line["ratio_deviation"] > 1e-5  # the second update has left the sampling policy


@pytest.mark.parametrize("passes", [1, 2])
def test_records_that_are_off_are_computed_again(train, monkeypatch, passes):
    # Reference: the run with right records: learner values up to rounding. Each is spoilt by 0.01 nats, more than a
    # tenth of the clip range; the first update replaces them, the second (and third, fourth) recompute them.
    again = f"train.train_policy.mu_iterations={passes}"
    right = train("flowgrpo", *ONE_STEP, again, into="right")
    exact = stochastic.log_prob
    monkeypatch.setattr(stochastic, "log_prob", lambda x_next, p: exact(x_next, p) + 0.01)
    spoilt = train("flowgrpo", *ONE_STEP, again, into="spoilt")
    (line,) = spoilt.metrics
    assert line["ratio_error"] == pytest.approx(0.01, rel=0.05)
    assert line["recomputed_log_probs"] == 1
    assert "computed again with the learner's code" in (spoilt.folder / "log.txt").read_text(encoding="utf-8")
    mine, theirs = spoilt.state(1), right.state(1)
    for path in theirs:
        if path.startswith("/policy/sets/learner/"):
            assert (mine[path] - theirs[path]).abs().max() < 1e-5, path


def test_a_plan_says_what_the_path_takes(toml, tmp_path, capsys):
    # Reference: by hand: 2 x 12 samples x 4 bytes x (3 latents and 2 means of 64 values, 3 levels, 2 log-densities):
    # all of it is there twice while it is put together.
    file = tmp_path / "preset.toml"
    file.write_text(toml("flowgrpo", tmp_path / "out"), encoding="utf-8")
    run.run(load(file, ("train.train_policy.ratio_norm=true",)), None, "never", dry_run=True)
    said = capsys.readouterr()
    (told,) = [line for line in (said.out + said.err).splitlines() if line.startswith("the path of a rollout")]
    assert "12 samples a rank, 2 of 3 steps stochastic" in told
    assert "takes up to 31.2 kB of host memory" in told
    assert "free: enough" in told


def test_free_memory(tmp_path):
    # Reference: the line as Linux writes it.
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       65000000 kB\nMemAvailable:   20534712 kB\n", encoding="ascii")
    assert free_memory(file) == 20534712 * 1024
    file.write_text("MemTotal: 1 kB\n", encoding="ascii")
    assert free_memory(file) is None
    assert free_memory(tmp_path / "none") is None
