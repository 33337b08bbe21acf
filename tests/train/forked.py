"""Run presets on several ranks over gloo: ``python forked.py [COUNT FILE RESUME]...``, a triple a case.

"signal:N" for RESUME starts anew and sends SIGTERM to the second rank alone when it takes its N-th item; both must end
with 143.

One process imports everything and forks the ranks of every case, so that the imports are paid for once.
"""

import os
import socket
import sys
import traceback

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rank(number, count, port, file, resume):
    """The exit code of one rank."""
    os.environ.update(
        RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    from sanarl.config import load
    from sanarl.training import run

    module = None
    if resume.startswith("signal:"):
        module = os.path.join(os.path.dirname(__file__), "stopping.py")
        if number == 1:
            os.environ["STOP_AT"] = f"{resume.removeprefix('signal:')} SIGTERM"
        resume = "never"
    return run.run(load(file), module, resume).exit_code


def main(*cases):
    """Run every case; the first failure ends it."""
    import diffusers  # noqa: F401  # before forking
    import torch

    import sanarl.models.sana
    import sanarl.training.build  # noqa: F401

    torch.set_num_threads(1)
    for count, file, resume in zip(map(int, cases[::3]), cases[1::3], cases[2::3], strict=True):
        port, children = free_port(), []
        for number in range(count):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    code = rank(number, count, port, file, resume)
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if codes != [143 if resume.startswith("signal:") else 0] * count:
            raise SystemExit(f"{file}: exit codes {codes}")


if __name__ == "__main__":
    main(*sys.argv[1:])
