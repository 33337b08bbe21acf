"""Several ranks under one launcher; small Python programs stand in for the ranks."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from sanarl.errors import UserError
from sanarl.runtime.world import is_rank
from sanarl.training.launch import idle_gpus, launch, processes
from sanarl.training.nodes import Nodes

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


RANK = """
import sys, time
from sanarl.errors import UserError
from sanarl.runtime.world import World, peers_named
import torch
try:
    world = World.start(float(sys.argv[1]))
    with peers_named(world.size, float(sys.argv[1])):
        for number in range(10):
            world.sum(torch.ones(1))
            if world.rank == 2 and number == 3:
                if sys.argv[2] == "fails":
                    raise UserError("the disk of rank 2 is full")
                time.sleep(600)
except UserError as error:
    sys.stderr.write(f"{error}\\n")
    sys.stderr.flush()
    import os
    os._exit(error.exit_code)
"""


@pytest.mark.slow
def test_what_a_rank_fails_of_is_said_once_and_ends_all(capfd):
    # Three ranks over gloo that sum for ever; the third fails, the others only lose it.
    assert launch(3, [sys.executable, "-c", RANK, "300", "fails"]) == 2
    said = capfd.readouterr().err
    assert said.count("the disk of rank 2 is full") == 1
    assert said.count("rank 2:") == 1
    assert said.count("another rank ended") <= 1  # rank 0 speaks for itself
    assert "Traceback" not in said


SCORING = """
import sys
from sanarl.rewards.mix import RewardError
from sanarl.rollout.collect import on_all_ranks
from sanarl.runtime.world import World
world = World.start(60)
def work():
    if world.rank == 2:
        raise RewardError("reward 'r' failed on prompt 'a'", exit_code=1)
    return 1
try:
    on_all_ranks(world, work)
except RewardError as error:
    sys.stderr.write(f"{error}\\n")
    world.stop()
    sys.exit(error.exit_code)
"""


@pytest.mark.slow
def test_a_reward_that_fails_on_one_rank_is_named_by_all(capfd):
    # Whichever rank is taken for the cause, and rank 0, which always speaks, name the reward.
    assert launch(3, [sys.executable, "-c", SCORING]) == 1
    said = capfd.readouterr().err.splitlines()
    assert said[0] == "rank 2: reward 'r' failed on prompt 'a'"
    assert all("reward 'r' failed on prompt 'a'" in line or line.startswith("rank") for line in said)


@pytest.mark.slow
def test_a_rank_that_hangs_ends_all_and_is_named(capfd):
    assert launch(3, [sys.executable, "-c", RANK, "4", "hangs"]) == 1
    said = capfd.readouterr().err
    assert said.count("did not answer within train.rank_timeout_s = 4") == 1
    assert "rank 2 did not answer and was ended" in said
    assert "Traceback" not in said


MACHINE = """
import sys
from sanarl.training.launch import launch
from sanarl.training.nodes import Nodes
code = "import os, sys, time; r = os.environ; sys.stderr.write(r['RANK'] + r['WORLD_SIZE'] + r['LOCAL_RANK'])\\n"
code += "sys.exit(7) if r['RANK'] == '3' and sys.argv[1] == 'fails' else time.sleep(float(sys.argv[2]))"
nodes = Nodes(2, int(sys.argv[1]), "127.0.0.1", int(sys.argv[2]))
sys.exit(launch(2, [sys.executable, "-c", code, *sys.argv[3:]], nodes))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "codes"), [("fails", [1, 7]), ("ends", [0, 0])])
def test_machines_end_together(how, codes):
    # The last rank of the second machine fails; the first machine's would sleep for minutes.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    wait = "300" if how == "fails" else "0"
    code = [sys.executable, "-c", MACHINE]
    machines = [
        subprocess.Popen([*code, str(number), str(port), how, wait], stderr=subprocess.PIPE, text=True)
        for number in range(2)
    ]
    said = [machine.communicate(timeout=120)[1] for machine in machines]
    assert [machine.returncode for machine in machines] == codes, said
    if how == "fails":
        assert said[0].endswith("ended because of machine 1: rank 3, which ended with 7\n")
        assert "rank 3:\n341" in said[1]


def test_what_several_machines_are_told(monkeypatch):
    monkeypatch.delenv("SLURM_NODEID", raising=False)
    assert Nodes.asked(1, None, None) is None
    assert Nodes.asked(2, "a.b:29500", 1) == Nodes(2, 1, "a.b", 29500)
    assert Nodes.asked(2, "[::1]:29500", 0) == Nodes(2, 0, "::1", 29500)
    monkeypatch.setenv("SLURM_NODEID", "1")
    assert Nodes.asked(2, "a:1", None) == Nodes(2, 1, "a", 1)
    assert Nodes.asked(2, "a:1", 0) == Nodes(2, 0, "a", 1)
    monkeypatch.delenv("SLURM_NODEID")
    with pytest.raises(UserError) as caught:
        Nodes.asked(2, "a:port", None)
    assert str(caught.value) == (
        "--rdzv: found 'a:port'; accepted: HOST:PORT of the first machine, the same on every one; "
        "PORT and the port after it must be free there\n"
        "--node-rank: missing; accepted: the number of this machine from 0 (Slurm sets SLURM_NODEID)"
    )
    with pytest.raises(UserError, match="--node-rank: found 2; accepted: 0 to 1"):
        Nodes.asked(2, "a:1", 2)


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


@pytest.mark.slow
def test_code_that_leaves_in_the_middle_of_a_run_ends_it_with_1(toml, tmp_path):
    # A reward that ends the process with os._exit(0), which no handler sees.
    reward = tmp_path / "leaves.py"
    reward.write_text("import os\n\n\ndef leaves(media, prompts, metadata):\n    os._exit(0)\n", encoding="utf-8")
    file = tmp_path / "preset.toml"
    file.write_text(toml("nft", tmp_path / "out"), encoding="utf-8")
    keys = ["--set", f'train.train_policy.reward_function={{ "{reward}:leaves" = 1.0 }}']
    command = [sys.executable, "-m", "sanarl", "train", "--config", str(file), *keys]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 1
    assert f"{reward}:5: os._exit(0) ended the process before the run had finished" in done.stderr


def test_processes_by_default(monkeypatch):
    # NPROC_PER_NODE, else one; with several GPUs a person who said nothing hears of them. No GPU is asked.
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.delenv("NPROC_PER_NODE", raising=False)
    assert processes(None) == 1
    assert idle_gpus(None) == "one of 8 GPUs is used; --nproc auto or NPROC_PER_NODE=8 uses all, with the same numbers"
    assert idle_gpus("1") is None
    assert processes("auto") == 8
    monkeypatch.setenv("NPROC_PER_NODE", "4")
    assert (processes(None), processes("2"), idle_gpus(None)) == (4, 2, None)
    with pytest.raises(UserError, match=r"found 9, but this machine has 8 GPU\(s\)"):
        processes("9")


@pytest.mark.parametrize("port", ["x", "-1", "0", "65536", "1.5"])
def test_a_port_that_is_none_is_named(port, monkeypatch):
    monkeypatch.setenv("MASTER_PORT", port)
    with pytest.raises(UserError, match=rf"MASTER_PORT in the environment: found '{port}'; accepted: a port from 1"):
        launch(2, [sys.executable, "-c", ""])


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")])
def test_a_port_that_is_taken_is_named(family, host, monkeypatch):
    """Two runs with the same MASTER_PORT: the second says so before it starts a rank."""
    with socket.create_server((host, 0), family=family, dualstack_ipv6=family == socket.AF_INET6) as other:
        port = other.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        with pytest.raises(
            UserError, match=rf"MASTER_PORT in the environment: found {port}, on which nobody can listen"
        ):
            launch(2, [sys.executable, "-c", ""])
    assert launch(1, [sys.executable, "-c", ""]) == 0  # free again


def test_the_environment_is_named_where_it_was_read(monkeypatch):
    monkeypatch.setenv("NPROC_PER_NODE", "many")
    with pytest.raises(UserError, match=r"^NPROC_PER_NODE in the environment: found 'many'"):
        processes(None)
    monkeypatch.setenv("NPROC_PER_NODE", "")  # as if it were not there
    assert processes(None) == 1
