"""A process that leaves with os._exit(0) inside a run does not look like one that finished."""

import subprocess
import sys

import pytest

CODE = """
import os
from sanarl.runtime.leaving import noticed
with noticed():
    {inside}
print("after", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("inside", "code", "words"),
    [
        ("os._exit(0)", 1, "os._exit(0) ended the process before the run had finished"),
        ("os._exit(3)", 3, ""),
        ("pass", 0, ""),
        ("os.fork() or os._exit(0); assert os.waitstatus_to_exitcode(os.wait()[1]) == 0", 0, ""),  # a child of its own
    ],
)
def test_leaving(inside, code, words):
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(inside=inside)], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert ("after" in done.stdout) == (code == 0)
