"""Several ranks under one launcher; small Python programs stand in for the ranks."""

import os
import signal
import subprocess
import sys
import time

import pytest

from sanarl.errors import UserError
from sanarl.runtime.world import is_rank
from sanarl.training.launch import launch, processes

LAUNCHER = """
import sys
from sanarl.training.launch import launch
sys.exit(launch(2, [sys.executable, "-c", sys.argv[1]]))
"""
WAITING = """
import os, signal, sys, time
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # one write a line: two ranks share this pipe
def hear(number, frame):
    say("heard", os.environ["RANK"], number)
    if number == signal.SIGTERM:
        sys.exit(143)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, hear)
say("up", os.getpid())
for _ in range(600):
    time.sleep(0.1)
"""


def test_ranks_get_torchruns_environment_and_the_first_failure_is_the_exit_code(capfd):
    # Reference: rank 1 leaves with 7 and a word; rank 0 would sleep for a minute.
    code = "import os, sys, time; r = os.environ; sys.stderr.write(r['RANK'] + r['WORLD_SIZE'] + r['LOCAL_RANK']);"
    code += "sys.exit(7) if r['RANK'] == '1' else time.sleep(60)"
    started = time.monotonic()
    assert launch(2, [sys.executable, "-c", code + "\n"]) == 7
    assert time.monotonic() - started < 30
    assert "rank 1:\n121" in capfd.readouterr().err
    assert launch(2, [sys.executable, "-c", ""]) == 0
    assert launch(2, [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) == 137


@pytest.fixture
def waiting():
    """A launcher of two ranks that wait for signals, and the pids of the ranks."""
    process = subprocess.Popen([sys.executable, "-c", LAUNCHER, WAITING], stdout=subprocess.PIPE, text=True)
    pids = [int(process.stdout.readline().split()[1]) for _ in range(2)]
    yield process, pids
    process.kill()
    process.wait()
    process.stdout.close()


def gone(pids):
    for _ in range(100):
        if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            return True
        time.sleep(0.1)
    return False


def test_signals_reach_every_rank_once(waiting):
    process, pids = waiting
    process.send_signal(signal.SIGUSR1)
    assert sorted(process.stdout.readline() for _ in range(2)) == ["heard 0 10\n", "heard 1 10\n"]
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert sorted(process.stdout.readline() for _ in range(2)) == ["heard 0 15\n", "heard 1 15\n"]
    assert process.wait(timeout=20) == 143
    assert gone(pids)


def test_ranks_do_not_outlive_their_launcher(waiting):
    process, pids = waiting
    process.kill()
    assert gone(pids)


def test_what_the_environment_says_of_ranks(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "two")  # schedulers leave it; alone it says nothing
    assert not is_rank()
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UserError, match="'WORLD_SIZE': 'two'"):
        is_rank()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert is_rank()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert not is_rank()


@pytest.mark.parametrize("nproc", ["0", "-1", "two", ""])
def test_nproc_is_a_number_or_auto(nproc):
    with pytest.raises(UserError, match="--nproc: found"):
        processes(nproc)
