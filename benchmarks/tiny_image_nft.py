"""Does DiffusionNFT learn? The preset tiny-image-nft over several seeds, judged on prompts that nothing was chosen on.

    python benchmarks/tiny_image_nft.py [--seeds 0 1 2] [--at-once 1] [--set KEY=VALUE ...] [--write]

Every seed trains in a process of its own. The baseline is the same model before training, on the same prompts from the
same noise, evaluated in the same run. --write keeps the figures under benchmarks/results.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "diffusers", "transformers", "peft", "numpy")
WANTED_RISES = {"tiny-image-nft": 0.20, "tiny-video-nft": 0.10}


def one(preset: str, seed: int, overrides: list[str], folder: Path) -> dict:
    out = folder / f"seed{seed}"
    sets = [f"train.seed={seed}", f"train.output_dir={out}", *overrides]
    command = [sys.executable, "-m", "sanarl", "train", "--config", preset]
    started = time.perf_counter()
    subprocess.run(command + [part for item in sets for part in ("--set", item)], check=True)
    seconds = time.perf_counter() - started
    lines = [json.loads(line) for line in next(out.glob("*/metrics.jsonl")).read_text().splitlines()]
    evaluations = [line for line in lines if "eval/reward" in line]
    steps = [line for line in lines if "loss" in line]
    first, last = evaluations[0], evaluations[-1]
    return {
        "seed": seed,
        "steps": last["step"],
        "seconds": round(seconds, 1),
        "seconds_per_step": round(statistics.median(s["time/rollout"] + s["time/train"] for s in steps), 2),
        "reward": [round(e["eval/reward"], 4) for e in evaluations],
        "strict": [round(e["eval/shapes/strict"], 4) for e in evaluations],
        "diversity": [round(e["eval/diversity"], 4) for e in evaluations],
        "zero_std_ratio": round(statistics.mean(s["zero_std_ratio"] for s in steps), 4),
        "rise": round(last["eval/reward"] - first["eval/reward"], 4),
        "ratio": round(last["eval/reward"] / first["eval/reward"], 3),
    }


def main(preset: str = "tiny-image-nft", text: str | None = __doc__) -> None:
    """Train the seeds of ``preset`` and say how far the held-out reward rose."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--at-once", type=int, default=1, help="seeds that train side by side, each the slower for it")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    name, wanted = preset.replace("-", "_"), WANTED_RISES[preset]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.at_once) as pool:
        runs = list(pool.map(lambda seed: one(preset, seed, asked.set, Path(folder)), asked.seeds))
    today = datetime.date.today().isoformat()
    result = {
        "benchmark": name,
        "date": today,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "threads": os.environ.get("OMP_NUM_THREADS", "unset"),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "at_once": asked.at_once,
        "overrides": asked.set,
        "wanted_rise": wanted,
        "runs": runs,
    }
    print(
        f"{'seed':>4} {'before':>7} {'after':>7} {'rise':>7} {'ratio':>6} {'strict':>15} {'s/step':>7} {'seconds':>8}"
    )
    for run in runs:
        strict = f"{run['strict'][0]:.3f} -> {run['strict'][-1]:.3f}"
        reward = f"{run['reward'][0]:>7.3f} {run['reward'][-1]:>7.3f} {run['rise']:>+7.3f} {run['ratio']:>6.2f}"
        print(f"{run['seed']:>4} {reward} {strict:>15} {run['seconds_per_step']:>7.2f} {run['seconds']:>8.0f}")
    reached = sum(run["rise"] >= wanted for run in runs)
    print(f"{reached} of {len(runs)} seeds rose by at least {wanted:.2f}")
    if asked.write:
        path = RESULTS / f"{name}_cpu_{today}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {path}")
    sys.exit(reached < len(runs))


if __name__ == "__main__":
    main()
