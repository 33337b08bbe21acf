"""Run a preset on two ranks over gloo, each with a folder of its own: ``python two_folders.py FILE FOLDER FOLDER``.

Ends with 0 when both ranks stop with a page, and prints rank 0's.
"""

import os
import sys

from forked import free_port


def rank(number, port, file, folder):
    """0 when the run stops with a page for the person."""
    os.environ.update(
        RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    from sanarl.config import load
    from sanarl.errors import UserError
    from sanarl.training import run

    try:
        run.run(load(file, [f"train.train_policy.dataset.local_dir={folder}"]), None, "never")
    except UserError as error:
        if number == 0:
            print(error, flush=True)
        return 0
    return 1


if __name__ == "__main__":
    import sanarl.training.run  # noqa: F401  # paid for once

    port, children = free_port(), []
    for number, folder in enumerate(sys.argv[2:]):
        pid = os.fork()
        if pid == 0:
            os._exit(rank(number, port, sys.argv[1], folder))
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    sys.exit(max(codes, key=abs))
