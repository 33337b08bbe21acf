"""Starting the ranks of a run on this machine, through torchrun's own launcher."""

import os
import sys

import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from sanarl.config import Loaded
from sanarl.errors import UserError
from sanarl.training import run
from sanarl.training.build import refuse_unsupported


def main(
    loaded: Loaded, dataset_module: str | None, nproc: str | None, resume: str | None, dry_run: bool = False
) -> int:
    """Train on as many processes as asked for.

    Args:
        loaded: the configuration.
        dataset_module: see ``run.run``.
        nproc: a number, or ``auto`` for one process a GPU; None: NPROC_PER_NODE, else 1. Ignored under torchrun,
            which has started the ranks already.
        resume: see ``run.run``.
        dry_run: see ``run.run``.

    Returns:
        The exit code.

    Raises:
        UserError: for whatever the user can mend.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return run.run(loaded, dataset_module, resume, dry_run).exit_code
    count = processes(nproc)
    if count == 1:
        return run.run(loaded, dataset_module, resume, dry_run).exit_code
    refuse_unsupported(loaded.config)
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id="sanarl",
        rdzv_backend="c10d",
        rdzv_endpoint=f"localhost:{os.environ.get('MASTER_PORT', '0')}",
        max_restarts=0,
        monitor_interval=0.2,
    )
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        elastic_launch(launch, sys.executable)("-m", "sanarl", *sys.argv[1:])
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        return code if code > 0 else 1
    return 0


def processes(nproc: str | None) -> int:
    """How many processes ``--nproc`` means here.

    Raises:
        UserError: when it is no number, or more than there are GPUs.
    """
    gpus = torch.cuda.device_count()
    asked = nproc if nproc is not None else os.environ.get("NPROC_PER_NODE", "1")
    if asked == "auto":
        return max(gpus, 1)
    if not asked.isdecimal() or int(asked) < 1:
        raise UserError(f"--nproc: found {asked!r}; accepted: a number of processes from 1, or auto (one a GPU)")
    count = int(asked)
    if gpus and count > gpus:
        raise UserError(f"--nproc: found {count}, but this machine has {gpus} GPU(s)")
    return count
