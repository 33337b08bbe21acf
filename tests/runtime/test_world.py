import subprocess
import sys

import pytest
import torch

from sanarl.runtime.world import MESSAGE_BYTES, World, _bundles


@pytest.mark.parametrize("n", [0, 1, 5, 12])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_rows_are_shared_evenly_and_completely(n, size):
    # Reference: range(n), cut into parts whose sizes differ by at most one.
    parts = [World(rank, size).rows(n) for rank in range(size)]
    assert [row for part in parts for row in part] == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_tensors_travel_together():
    # By hand: a change of dtype or a full message begins a new one; a larger tensor travels by itself.
    whole = MESSAGE_BYTES // 4
    sizes = [(3, torch.float32), (4, torch.float32), (2, torch.bfloat16), (whole, torch.float32), (1, torch.float32)]
    given = [torch.empty(n, dtype=dtype, device="meta") for n, dtype in sizes]
    assert [[len(t) for t in bundle] for bundle in _bundles(given)] == [[3, 4], [2], [whole], [1]]
    assert list(_bundles([])) == []


def test_alone_nothing_is_exchanged():
    world = World()
    x = torch.arange(6.0).view(3, 2)
    assert world.main
    assert torch.equal(world.sum(x.clone()), x)
    assert torch.equal(world.gather(x, 3), x)
    assert world.gather_objects("a") == ["a"]
    assert world.tell("b") == "b"
    assert world.agree(True)
    assert not world.agree(False)
    world.barrier()
    world.stop()


def test_without_torchrun_a_process_is_alone(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert World.start().size == 1


LEFT = """
import os, socket, sys
from sanarl.runtime.world import World
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = str(probe.getsockname()[1])
child = os.fork()
rank = "0" if child else "1"
os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
world = World.start(timeout_s=3.0)
if not child:
    os._exit(0)
os.waitpid(child, 0)
try:
    world.side_group()
except RuntimeError:
    os._exit(7)
"""


@pytest.mark.slow
def test_a_side_group_waits_no_longer_than_its_world():
    # The other rank has left; torch by itself would wait for half an hour.
    done = subprocess.run([sys.executable, "-c", LEFT], timeout=90, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
