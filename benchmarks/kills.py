"""Does kill -9 lose more than the work since the last complete checkpoint? Random kills across steps and saves.

    python benchmarks/kills.py [--kills 200] [--ranks 1] [--seed 0] [--write [FOLDER]]

With --ranks 2 and more the ranks train all weights cut over them (FSDP2 on gloo) and each writes its part of a
checkpoint; every other kill takes one of them, and the others must end by themselves, and every other one all.
A run of six steps of a tiny model saves after every step beside the training. It is forked from this process, which has
imported everything, killed at a random moment (every other time just after a save has begun, the rest at any time of
the run) and gone on with, until it has finished; then a new one begins. After every kill

- each checkpoint in the folder must pass its own checks, and none that was complete before may be gone unless it was
  pruned;
- the next process must go on from the newest of them.

Every run that finishes must end with the same bits as one that nobody killed. --write keeps the counts.
"""

import argparse
import datetime
import json
import os
import platform
import random
import signal
import socket
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
STEPS = 6
PATIENCE_S = 120
"""How long ranks may wait for one that is gone: those that had not met yet wait for train.rank_timeout_s, and torch
tries twice."""
PRESET = """
[policy]
model_name_or_path = "MODEL"
is_diffusers = true
[policy.diffusers]
max_prompt_length = 12
inference_size = [32, 32]
TRAINED
[train]
output_dir = "OUTPUT"
epoch = 100
max_num_steps = STEPS
param_dtype = "float32"
optm_lr = 1e-2
optm_warmup_steps = 0
train_batch_per_replica = BATCH
rank_timeout_s = 20.0
ema_enable = true
[train.ckpt]
enable_checkpoint = true
save_freq = 1
max_keep = 3
[train.train_policy]
type = "sft"
dataset.name = "shapes"
[logging]
logger = []
"""


ADAPTER = """
[policy.lora]
r = 4
lora_alpha = 8
target_modules = ["attn1.to_q", "attn1.to_v"]
"""
CUT = """
[policy.parallelism]
dp_shard_size = RANKS
"""


class Running:
    """The ranks of a run, forked from this process."""

    def __init__(self, file: Path, ranks: int):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.codes: dict[int, int | None] = {fork(file, n, ranks, port): None for n in range(ranks)}

    def looked(self) -> None:
        """Take note of ranks that have ended."""
        for child, code in self.codes.items():
            if code is None:
                found, status = os.waitpid(child, os.WNOHANG)
                self.codes[child] = os.waitstatus_to_exitcode(status) if found else None

    def ended(self) -> bool:
        """Whether all ranks have ended, as they should.

        Raises:
            RuntimeError: when one ended with an error.
        """
        self.looked()
        if any(self.codes.values()):
            self.kill(None)
            raise RuntimeError(f"a run that went on ended with exit codes {list(self.codes.values())}")
        return all(code == 0 for code in self.codes.values())

    def kill(self, which: int | None) -> None:
        """Kill one rank and wait until the others have ended by themselves; None: kill all.

        Raises:
            RuntimeError: when they go on for ``PATIENCE_S``.
        """
        children = [child for child, code in self.codes.items() if code is None]
        for child in children if which is None else [list(self.codes)[which]]:
            if self.codes[child] is None:
                os.kill(child, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_S
        while any(code is None for code in self.codes.values()):
            self.looked()
            if time.monotonic() > deadline:
                self.kill(None)
                raise RuntimeError(f"a rank went on for {PATIENCE_S} s without the one that was killed")
            time.sleep(0.001)


def fork(file: Path, rank: int, ranks: int, port: int) -> int:
    """Fork a process that trains, or goes on; its number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if ranks > 1:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        from sanarl.config import load
        from sanarl.training import run

        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        if ranks > 1:
            os.dup2(quiet, 2)  # ranks that lose another one say so
        code = run.run(load(file), None, "auto").exit_code
    finally:
        os._exit(code)


def newest(output: Path, identity: str) -> tuple[int, dict[str, Any] | None]:
    """Step and state of the newest checkpoint, after all of them were read in full.

    Raises:
        UserError: when one is damaged.
    """
    from sanarl.runtime import checkpoint

    states = {
        int(path.name.removeprefix("step_")): checkpoint.read(path, identity)
        for folder in output.glob("*/checkpoints")
        for path in checkpoint.complete(folder)
    }
    return max(states.items(), default=(0, None), key=lambda item: item[0])


def kill(running: Running, output: Path, wait_s: float, in_save: bool, which: int | None) -> str | None:
    """Kill a run after a time, or that long after a save has begun; None when it ended before.

    Raises:
        RuntimeError: when it ended with an error, or ranks outlive one that was killed.
    """
    deadline = time.monotonic() + (60 if in_save else wait_s)
    while time.monotonic() < deadline:
        if running.ended():
            return None
        if in_save and any(output.glob("*/checkpoints/.partial-*")):
            time.sleep(wait_s)
            break
        time.sleep(0.0005)
    if running.ended():
        return None
    saving = any(output.glob("*/checkpoints/.partial-*"))
    running.kill(which)
    return "in a save" if saving or any(output.glob("*/checkpoints/.partial-*")) else "between saves"


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal, tensors bit by bit."""
    import torch

    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS)
    asked = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    from sanarl.config import load
    from sanarl.models import tiny
    from sanarl.training import run  # noqa: F401  # before anything is forked

    started, draw = time.monotonic(), random.Random(asked.seed)
    counts = {"in a save": 0, "between saves": 0, "ended before": 0, "finished runs": 0}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        tiny.random_pipeline().save_pretrained(Path(place, "model"))

        def preset(name: str) -> tuple[Path, Path, str]:
            output, file = Path(place, name), Path(place, f"{name}.toml")
            text = PRESET.replace("MODEL", f"{place}/model").replace("OUTPUT", str(output))
            text = text.replace("TRAINED", ADAPTER if asked.ranks == 1 else CUT.replace("RANKS", str(asked.ranks)))
            text = text.replace("BATCH", str(2 if asked.ranks == 1 else 1))
            file.write_text(text.replace("STEPS", str(STEPS)), encoding="utf-8")
            return file, output, load(file).config.identity()

        file, output, identity = preset("whole")
        begun = time.monotonic()
        whole = Running(file, asked.ranks)  # forked as the others, so that nothing is different; imports are done
        while not whole.ended():
            time.sleep(0.001)
        lasts = time.monotonic() - begun
        expected = newest(output, identity)[1]
        number, known = 0, 0
        file, output, identity = preset(f"run{number}")
        while counts["in a save"] + counts["between saves"] < asked.kills and not wrong:
            in_save = draw.random() < 0.5
            which = draw.randrange(asked.ranks) if draw.random() < 0.5 else None
            running, how = Running(file, asked.ranks), None
            try:
                how = kill(running, output, draw.uniform(0, 0.02 if in_save else 1.2 * lasts), in_save, which)
                counts[how or "ended before"] += 1
                step, state = newest(output, identity)
            except Exception as error:
                wrong.append(f"after a kill {how}: {error}")
                break
            if step < known:
                wrong.append(f"after a kill {how}: step {known} was complete, step {step} is the newest")
            known = step
            if step == STEPS:
                counts["finished runs"] += 1
                if not same(state, expected):
                    wrong.append(f"run {number} ended with other values than a run that nobody killed")
                number, known = number + 1, 0
                file, output, identity = preset(f"run{number}")
    result = {
        "benchmark": "kills",
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "diffusers")},
        "seed": asked.seed,
        "ranks": asked.ranks,
        "seconds": round(time.monotonic() - started, 1),
        "seconds_of_a_whole_run": round(lasts, 2),
        "counts": counts,
        "wrong": wrong,
    }
    print(json.dumps(result, indent=1), flush=True)
    if asked.write is not None:
        asked.write.mkdir(parents=True, exist_ok=True)
        ranks = f"_{asked.ranks}_ranks" if asked.ranks > 1 else ""
        path = asked.write / f"kills_cpu{ranks}_{result['date']}.json"
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
