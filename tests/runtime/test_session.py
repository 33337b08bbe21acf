import json
import os
import shutil
import signal

import pytest

from sanarl.errors import UserError
from sanarl.runtime import checkpoint
from sanarl.runtime.checkpoint import complete, read
from sanarl.runtime.console import Console
from sanarl.runtime.folder import RunFolder
from sanarl.runtime.session import Progress, Saving, Session
from sanarl.runtime.signals import Signals
from sanarl.runtime.world import World


class Counter:
    def __init__(self):
        self.n = 0

    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]


@pytest.fixture
def make(tmp_path):
    """A function that gives a session with a counter in its state, already begun."""

    def session(total=6, resume_from=None, save_bytes=0, **saving):
        values = {"enabled": True, "every": 2, "max_keep": -1, "export": True, "at_exit": True}
        values |= {"beside": False, "max_hours": None}
        made = Session(
            folder=RunFolder(tmp_path / "run"),
            world=World(),
            identity="abc",
            saving=Saving(**(values | saving)),
            console=Console(tmp_path / "log.txt", quiet=True),
            trackers=[],
            log_interval=1,
            total=total,
        )
        made.folder.path.mkdir(exist_ok=True)
        made.counter = Counter()
        made.begin({"counter": made.counter}, resume_from, save_bytes)
        return made

    return session


def saved(session):
    return [int(p.name.removeprefix("step_")) for p in complete(session.folder.checkpoints)]


def walk(session, at=None, number=None):
    """Run the loop; send this process the signal ``number`` within step ``at``."""
    exported, seen = [], []
    for step in session.steps(lambda folder: exported.append(folder.name)):
        session.counter.n += step
        session.log(step, {"loss": 1.0})
        if step == at:
            os.kill(os.getpid(), number)
        seen.append(step)
    return seen, exported


def steps_logged(session):
    return [json.loads(line)["step"] for line in session.folder.metrics.read_text().splitlines()]


def test_a_checkpoint_written_beside_the_training_holds_the_step_it_was_taken_at(make):
    # Reference: the counter after that step.
    session = make(beside=True)
    walk(session)
    assert saved(session) == [2, 4, 6]
    found = [read(path, "abc") for path in complete(session.folder.checkpoints)]
    assert [state["counter"]["n"] for state in found] == [3, 10, 21]
    assert [state["progress"]["step"] for state in found] == [2, 4, 6]


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("end", ["last step", "signal"])
def test_a_checkpoint_that_cannot_be_written_fails_the_run(make, monkeypatch, beside, end):
    session = make(beside=beside, at_exit=False)

    def full(*_):
        raise UserError("disk full")

    monkeypatch.setattr(checkpoint, "write", full)
    with pytest.raises(UserError, match="disk full"):
        walk(session, at=3 if end == "signal" else None, number=signal.SIGTERM)


def test_a_run_saves_and_exports_at_its_interval_and_at_its_end(make):
    session = make(total=5)
    assert walk(session) == ([1, 2, 3, 4, 5], ["step_2", "step_4", "step_5"])
    assert saved(session) == [2, 4, 5]
    assert session.signals.exit_code == 0


@pytest.mark.parametrize(
    ("saving", "checkpoints", "exports"),
    [
        ({"enabled": False}, [], []),
        ({"export": False}, [2, 4, 6], []),
        ({"every": 100}, [6], ["step_6"]),
        ({"max_keep": 1}, [6], ["step_2", "step_4", "step_6"]),
    ],
)
def test_what_is_saved_is_what_was_asked_for(make, saving, checkpoints, exports):
    session = make(**saving)
    assert walk(session)[1] == exports
    assert saved(session) == checkpoints


def test_a_resumed_run_goes_on_where_the_checkpoint_was(make):
    first = make(total=3)
    walk(first)
    with open(first.folder.metrics, "a") as file:
        file.write('{"step": 4, "lo')  # what a crash leaves
    (first.folder.checkpoints / ".partial-step_4").mkdir()
    second = make(resume_from=first.folder.checkpoints / "step_2")
    assert second.counter.n == 1 + 2
    assert walk(second)[0] == [3, 4, 5, 6]
    assert second.counter.n == 21
    assert steps_logged(second) == [1, 2, 3, 4, 5, 6]
    assert saved(second) == [2, 4, 6]
    assert not list(second.folder.checkpoints.glob(".partial*"))


def test_going_on_from_an_older_checkpoint_sets_later_ones_aside(make):
    # They are neither the newest for the next resume nor for pruning, and nothing is lost.
    first = make(total=8)
    walk(first)
    second = make(total=4, resume_from=first.folder.checkpoints / "step_2", max_keep=2)
    walk(second)
    assert saved(second) == [2, 4]
    assert sorted(p.name for p in second.folder.checkpoints.glob("abandoned-*")) == [
        "abandoned-step_4",
        "abandoned-step_6",
        "abandoned-step_8",
    ]
    assert read(second.folder.checkpoints / "abandoned-step_8", "abc")["progress"]["step"] == 8
    assert steps_logged(second) == [1, 2, 3, 4]


def test_a_finished_run_has_nothing_left(make):
    first = make(total=2)
    walk(first)
    assert walk(make(total=2, resume_from=first.folder.checkpoints / "step_2")) == ([], [])


def test_a_new_run_forgets_metrics_in_its_folder(make):
    first = make(total=2)
    walk(first)
    make(total=2)
    assert first.folder.metrics.read_text() == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(make, number, code):
    session, before = make(), signal.getsignal(number)
    assert walk(session, at=3, number=number)[0] == [1, 2, 3]
    assert saved(session) == [2, 3]
    assert session.signals.exit_code == code
    assert read(session.folder.checkpoints / "step_3", "abc")["progress"]["step"] == 3
    assert signal.getsignal(number) is before
    assert f"stopped by {number.name} after step 3" in (session.folder.path.parent / "log.txt").read_text()


def test_no_checkpoint_at_exit_when_not_wanted(make):
    session = make(at_exit=False)
    walk(session, at=3, number=signal.SIGTERM)
    assert saved(session) == [2]


def test_a_run_ends_with_a_checkpoint_when_its_time_is_over(make):
    session = make(max_hours=0.0)
    assert walk(session)[0] == [1]
    assert saved(session) == [1]
    assert session.signals.exit_code == 0
    assert "train.max_hours = 0.0" in (session.folder.path.parent / "log.txt").read_text()


def test_a_disk_without_room_is_seen_before_the_first_step_and_before_every_save(make, monkeypatch):
    with pytest.raises(UserError, match=r"take about 1,000,000,000\.0 GB and the disk has .* GB free"):
        make(save_bytes=10**18)
    make(save_bytes=10**18, enabled=False)
    session = make(save_bytes=1000)
    free = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free._replace(free=999))
    with pytest.raises(UserError, match="What was saved before is untouched"):
        walk(session)
    assert saved(session) == []


def test_the_best_reward_is_remembered():
    # Reference: by hand. An equal reward later is no better.
    progress, best = Progress(), []
    for step, reward in enumerate([0.4, 0.3, 0.5, 0.5, 0.6]):
        progress.rewarded(reward, step)
        best.append(progress.best_step)
    assert best == [0, 0, 2, 2, 4]
    assert (progress.first_reward, progress.best_reward) == (0.4, 0.6)
    other = Progress()
    other.load_state_dict(progress.state_dict())
    assert other == progress


def test_sigusr1_saves_and_goes_on(make):
    session = make()
    assert walk(session, at=3, number=signal.SIGUSR1)[0] == [1, 2, 3, 4, 5, 6]
    assert saved(session) == [2, 3, 4, 6]
    assert session.signals.exit_code == 0


def test_a_second_interrupt_ends_at_once():
    with Signals() as signals, signals.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        assert (signals.stop, signals.exit_code) == (signal.SIGINT, 130)
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), signal.SIGINT)
    assert ended.value.code == 130


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_outside_a_step_there_is_nothing_to_wait_for(number, code):
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGUSR1)  # remembered for the first save, and no reason to die
        assert signals.save
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), number)
    assert ended.value.code == code


def test_signals_are_given_back_after_an_error(make):
    session, before = make(), signal.getsignal(signal.SIGTERM)
    steps = session.steps(lambda _: None)
    next(steps)
    assert signal.getsignal(signal.SIGTERM) is not before
    steps.close()  # what leaving the loop by an error does
    assert signal.getsignal(signal.SIGTERM) is before


def test_times_are_added_up_and_logged_once(make):
    session = make()
    for _ in range(2):
        with session.timed("train"):
            pass
    session.log(1, {"loss": 1.0})
    session.log(2, {"loss": 1.0})
    first, second = (json.loads(line) for line in session.folder.metrics.read_text().splitlines())
    assert set(first) == {"step", "loss", "time/train"}
    assert set(second) == {"step", "loss"}


def test_the_best_step_is_saved_when_it_happens_and_outlives_newer_ones(make):
    session = make(every=4, max_keep=1, total=6)
    rewards = {1: 0.1, 2: 0.2, 3: 0.7, 4: 0.3, 5: 0.4, 6: 0.5}
    for step in session.steps(lambda folder: folder.mkdir(parents=True)):
        if step in (1, 3, 5):
            session.progress.rewarded(rewards[step], step)
    assert saved(session) == [3, 6]
    assert sorted(p.name for p in session.folder.exports.iterdir()) == ["step_3", "step_6"]
    assert json.loads((session.folder.path / "best.json").read_text()) == {
        "step": 3,
        "reward": 0.7,
        "checkpoint": "checkpoints/step_3",
        "export": "safetensors/step_3",
    }
