"""Memory for media in a scorer's process, and the folder that they come through."""

import subprocess
import sys

import pytest
import torch

from sanarl.errors import UserError
from sanarl.rewards.server.intake import Spool
from sanarl.rewards.server.scoring import Buffers

CPU = torch.device("cpu")


def test_memory_is_used_again_but_never_by_two():
    # Reference: addresses.
    buffers = Buffers()
    first, second = (buffers.get(torch.Size((2, 3, 4)), CPU) for _ in range(2))
    assert first.data_ptr() != second.data_ptr()
    buffers.put_back(first)
    smaller = buffers.get(torch.Size((4, 5)), CPU)
    assert (smaller.data_ptr(), smaller.shape) == (first.data_ptr(), (4, 5))
    buffers.put_back(smaller)
    whole = buffers.get(torch.Size((24,)), CPU)  # nothing of it is lost by having been smaller
    assert whole.data_ptr() == first.data_ptr()
    buffers.put_back(whole)
    assert buffers.get(torch.Size((2, 3)), CPU).data_ptr() != first.data_ptr()  # too little for so much
    assert buffers.get(torch.Size((25,)), CPU).data_ptr() != first.data_ptr()


def test_only_a_few_are_kept():
    buffers = Buffers()
    made = [buffers.get(torch.Size((8,)), CPU) for _ in range(5)]
    for one in made:
        buffers.put_back(one)
    again = {buffers.get(torch.Size((8,)), CPU).data_ptr() for _ in range(5)}
    assert len(again & {one.data_ptr() for one in made}) == 2


KILLED = """
import os, sys
from sanarl.rewards.server.intake import Spool
spool = Spool(sys.argv[1], 0)
spool.file("media").write_bytes(b"x" * 1000)
print(spool.path, flush=True)
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_service_left_is_deleted_by_the_next(tmp_path):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert killed.returncode == -9
    (left,) = tmp_path.iterdir()
    assert killed.stdout == f"{left}\n"
    first = Spool(str(tmp_path), 0)
    assert list(tmp_path.iterdir()) == [first.path]
    first.file("media").write_bytes(b"mine")
    second = Spool(str(tmp_path), 0)  # beside one that lives
    assert sorted(tmp_path.iterdir()) == sorted([first.path, second.path])
    assert first.file("media").read_bytes() == b"mine"
    first.close()
    assert list(tmp_path.iterdir()) == [second.path]
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(UserError, match=r"service\.spool: found .*nowhere.: No such file or directory"):
        Spool(str(tmp_path / "nowhere"), 0)
