"""Does kill -9 lose more than the work since the last complete checkpoint? Random kills across steps and saves.

    python benchmarks/kills.py [--kills 200] [--seed 0] [--write [FOLDER]]

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
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
STEPS = 6
PRESET = """
[policy]
model_name_or_path = "MODEL"
is_diffusers = true
[policy.diffusers]
max_prompt_length = 12
inference_size = [32, 32]
[policy.lora]
r = 4
lora_alpha = 8
target_modules = ["attn1.to_q", "attn1.to_v"]
[train]
output_dir = "OUTPUT"
epoch = 100
max_num_steps = STEPS
param_dtype = "float32"
optm_lr = 1e-2
optm_warmup_steps = 0
train_batch_per_replica = 2
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


def begin(file: Path) -> int:
    """Fork a process that trains, or goes on; its number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        from sanarl.config import load
        from sanarl.training import run

        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        code = run.run(load(file), None, "auto").exit_code
    finally:
        os._exit(code)


def ended(child: int) -> int | None:
    """The exit code of a child, or None while it runs."""
    found, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


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


def kill(child: int, output: Path, wait_s: float, in_save: bool) -> str | None:
    """Kill a run after a time, or that long after a save has begun; None when it ended before.

    Raises:
        RuntimeError: when it ended with an error.
    """
    deadline = time.monotonic() + (60 if in_save else wait_s)
    while time.monotonic() < deadline:
        if (code := ended(child)) is not None:
            if code:
                raise RuntimeError(f"a run that went on ended with exit code {code}")
            return None
        if in_save and any(output.glob("*/checkpoints/.partial-*")):
            time.sleep(wait_s)
            break
        time.sleep(0.0005)
    if ended(child) is not None:
        return None
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    saving = any(output.glob("*/checkpoints/.partial-*"))
    return "in a save" if saving else "between saves"


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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS)
    asked = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    from sanarl.config import load
    from sanarl.models import tiny
    from sanarl.training import run

    started, draw = time.monotonic(), random.Random(asked.seed)
    counts = {"in a save": 0, "between saves": 0, "ended before": 0, "finished runs": 0}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        tiny.random_pipeline().save_pretrained(Path(place, "model"))

        def preset(name: str) -> tuple[Path, Path, str]:
            output, file = Path(place, name), Path(place, f"{name}.toml")
            text = PRESET.replace("MODEL", f"{place}/model").replace("OUTPUT", str(output))
            file.write_text(text.replace("STEPS", str(STEPS)), encoding="utf-8")
            return file, output, load(file).config.identity()

        file, output, identity = preset("whole")
        begun = time.monotonic()
        whole = begin(file)  # forked as the others, so that nothing is different; imports are done by then
        assert os.waitstatus_to_exitcode(os.waitpid(whole, 0)[1]) == 0, run.__name__
        lasts = time.monotonic() - begun
        expected = newest(output, identity)[1]
        number, known = 0, 0
        file, output, identity = preset(f"run{number}")
        while counts["in a save"] + counts["between saves"] < asked.kills and not wrong:
            in_save = draw.random() < 0.5
            child = begin(file)
            how = None
            try:
                how = kill(child, output, draw.uniform(0, 0.02 if in_save else 1.2 * lasts), in_save)
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
        "seconds": round(time.monotonic() - started, 1),
        "seconds_of_a_whole_run": round(lasts, 2),
        "counts": counts,
        "wrong": wrong,
    }
    print(json.dumps(result, indent=1), flush=True)
    if asked.write is not None:
        asked.write.mkdir(parents=True, exist_ok=True)
        path = asked.write / f"kills_cpu_{result['date']}.json"
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
