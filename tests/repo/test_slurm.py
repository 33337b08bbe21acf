"""The Slurm example, with small programs in the place of Slurm's commands."""

import os
import subprocess
from pathlib import Path

from typer.testing import CliRunner

from sanarl.cli import app
from sanarl.training.nodes import Nodes

SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "slurm" / "train.sbatch"
PROGRAMS = {
    "scontrol": 'printf "gpu-a\\ngpu-b\\n"',
    "srun": 'shift; for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@"; done',
    "sanarl": 'echo "$SLURM_NODEID $*"',
}


def test_the_script_starts_the_command_on_every_machine(tmp_path):
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "gpu-[a-b]", "SLURM_NNODES": "2"}
    found = subprocess.run(["bash", SCRIPT, "my.toml"], env=environment, capture_output=True, text=True, check=True)
    asked = "train --config my.toml --nproc auto --nnodes 2 --rdzv gpu-a:29500 --resume auto"
    assert found.stdout.splitlines() == [f"0 {asked}", f"1 {asked}"]
    # The command understands what it is given: the only fault is a preset that is not there.
    result = CliRunner().invoke(app, asked.split())
    assert "my.toml" in str(result.exception)
    assert Nodes.asked(2, "gpu-a:29500", 1) == Nodes(2, 1, "gpu-a", 29500)
