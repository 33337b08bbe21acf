"""DiffusionNFT and Flow-GRPO on the same tiny task: reward against samples and against seconds.

    python benchmarks/algorithms.py [--seeds 0 1 2] [--algorithms nft flowgrpo] [--steps N] [--runs FOLDER] [--jobs N]
                                    [--write]

Both presets start from the same model, see the same prompts and are judged on the same held-out prompts (split test, on
which nothing was chosen) from the same noise. Every run is a process of its own with one thread; --runs keeps them and
takes those that are complete from there. Seconds are CPU seconds of the training process, read from outside at every
line of its metrics, so that other work on the machine does not count: the median of steps without evaluation, times the
steps. --write keeps the figures under benchmarks/results and draws docs/algorithms.svg.
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

ROOT = Path(__file__).parents[1]
PACKAGES = ("torch", "diffusers", "transformers", "peft", "numpy")
NAMES = {"nft": "DiffusionNFT", "flowgrpo": "Flow-GRPO"}
COLOURS = {"nft": "#1f77b4", "flowgrpo": "#d62728"}
WANTED_RISE, WITHIN_S = 0.10, 480.0
EVERY = 15
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def train(algorithm: str, seed: int, steps: int, folder: Path) -> None:
    """One run; beside its metrics, cpu.json holds the process's CPU seconds at each of their lines."""
    sets = [
        f"train.seed={seed}",
        f"train.output_dir={folder}",
        f"validation.freq={EVERY}",
        f"train.max_num_steps={steps}",
    ]
    sets += ["train.ckpt.enable_checkpoint=false", "rollout.n_generation_mini_batch=64", "guards.enable=false"]
    command = [sys.executable, "-m", "sanarl", "train", "--config", f"tiny-image-{algorithm}"]
    command += [part for item in sets for part in ("--set", item)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    seen: list[float] = []
    while process.poll() is None:
        lines = sum(len(file.read_bytes().splitlines()) for file in folder.glob("*/metrics.jsonl"))
        if lines > len(seen):
            seen += [cpu_seconds(process.pid)] * (lines - len(seen))
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"{algorithm}, seed {seed}: training ended with {process.returncode}")
    (folder / "cpu.json").write_text(json.dumps(seen), encoding="utf-8")


def outcome(algorithm: str, seed: int, num_steps: int, folder: Path) -> dict:
    """What a run left, in figures, up to a step. A longer run is the same until then: no schedule knows its length."""
    lines = [json.loads(line) for line in next(folder.glob("*/metrics.jsonl")).read_text("utf-8").splitlines()]
    lines = lines[: num_steps + 1]
    cpu = json.loads((folder / "cpu.json").read_text("utf-8"))[: num_steps + 1]
    evaluations = [line for line in lines if "eval/reward" in line]
    plain = [b - a for a, b, line in zip(cpu, cpu[1:], lines[1:], strict=False) if "eval/reward" not in line]
    seconds = statistics.median(plain)
    steps = [line["step"] for line in evaluations]
    samples = round(lines[1]["group_size"] * lines[1]["trained_prompt_num"])
    reward = [round(line["eval/reward"], 4) for line in evaluations]
    return {
        "algorithm": algorithm,
        "seed": seed,
        "steps": steps,
        "samples": [step * samples for step in steps],
        "cpu_seconds": [round(step * seconds, 1) for step in steps],
        "cpu_seconds_per_step": round(seconds, 3),
        "wall_seconds_per_step": round(statistics.median(line["time/step"] for line in lines if "loss" in line), 2),
        "cpu_seconds_of_the_run": round(cpu[-1], 1),
        "reward": reward,
        "strict": [round(line["eval/shapes/strict"], 4) for line in evaluations],
        "diversity": [round(line["eval/diversity"], 4) for line in evaluations],
        "rise": round(reward[-1] - reward[0], 4),
    }


def mean(values: list[float]) -> float:
    """Their mean, to four digits."""
    return round(statistics.mean(values), 4)


# ---- the picture


def panel(runs: list[dict], across: str, title: str, left: int) -> list[str]:
    """Reward against one axis: every seed thin, the mean of the seeds thick."""
    width, height, top, bottom = 300, 220, 30, 40
    far = max(run[across][-1] for run in runs)
    low, high = 0.3, 0.7

    def at(x: float, y: float) -> str:
        return f"{left + 45 + x / far * width:.1f},{top + (high - y) / (high - low) * height:.1f}"

    def line(xs: list[float], ys: list[float], colour: str, stroke: float) -> str:
        points = " ".join(at(x, y) for x, y in zip(xs, ys, strict=True))
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{stroke}"/>'

    def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'

    parts = [text(left + 45 + width / 2, top + height + bottom - 4, title)]
    for level in (0.3, 0.4, 0.5, 0.6, 0.7):
        x, y = (float(v) for v in at(0, level).split(","))
        parts += [f'<path d="M{x:.1f} {y:.1f}h{width}" stroke="#ddd"/>', text(x - 6, y + 4, f"{level:.1f}", "end")]
    for share in (0, 0.5, 1):
        parts.append(text(left + 45 + share * width, top + height + 18, f"{share * far:.0f}"))
    for place, algorithm in enumerate(dict.fromkeys(run["algorithm"] for run in runs)):
        mine, colour = [run for run in runs if run["algorithm"] == algorithm], COLOURS[algorithm]
        parts += [line(run[across], run["reward"], colour, 0.7) for run in mine]
        means = [
            [statistics.mean(v) for v in zip(*(run[key] for run in mine), strict=True)] for key in (across, "reward")
        ]
        parts.append(line(*means, colour, 2.5))
        parts.append(f'<g fill="{colour}">{text(left + 55, top + 14 + 15 * place, NAMES[algorithm], "start")}</g>')
    return parts


def picture(runs: list[dict]) -> str:
    """Both panels as SVG."""
    parts = panel(runs, "samples", "samples drawn for training", 0)
    parts += panel(runs, "cpu_seconds", "CPU seconds of training, one thread", 370)
    parts.append('<text x="12" y="16" text-anchor="start">reward on held-out prompts</text>')
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 740 295" font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="740" height="295" fill="white"/>', *parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--algorithms", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = asked.runs or Path(scratch)
        wanted = {(a, s): place / f"{a}-{s}" for s in asked.seeds for a in asked.algorithms}
        missing = [(*key, asked.steps, folder) for key, folder in wanted.items() if not (folder / "cpu.json").exists()]
        with ThreadPoolExecutor(asked.jobs) as pool:
            list(pool.map(lambda job: train(*job), missing))
        runs = [outcome(*key, asked.steps, folder) for key, folder in wanted.items()]
    report(runs, asked.write)
    risen = [run["rise"] >= WANTED_RISE and run["cpu_seconds_of_the_run"] <= WITHIN_S for run in runs]
    sys.exit(not all(risen))


def report(runs: list[dict], write: bool) -> None:
    """Print a table; with ``write`` keep figures and picture."""
    print(f"{'':>12} {'seed':>4} {'before':>7} {'after':>7} {'rise':>7} {'strict':>15} {'CPU s/step':>10} {'CPU s':>6}")
    for run in runs:
        strict = f"{run['strict'][0]:.3f} -> {run['strict'][-1]:.3f}"
        reward = f"{run['reward'][0]:>7.3f} {run['reward'][-1]:>7.3f} {run['rise']:>+7.3f}"
        took = f"{run['cpu_seconds_per_step']:>10.2f} {run['cpu_seconds_of_the_run']:>6.0f}"
        print(f"{NAMES[run['algorithm']]:>12} {run['seed']:>4} {reward} {strict:>15} {took}")
    if not write:
        return
    means = {
        name: {
            key: mean([run[key] for run in runs if run["algorithm"] == name])
            for key in ("rise", "cpu_seconds_per_step")
        }
        for name in dict.fromkeys(run["algorithm"] for run in runs)
    }
    today = datetime.date.today().isoformat()
    result = {
        "benchmark": "algorithms",
        "date": today,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, one thread a run",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "presets": {name: f"tiny-image-{name}" for name in means},
        "split": "test",
        "wanted": f"a rise of {WANTED_RISE} within {WITHIN_S:.0f} s",
        "means": means,
        "runs": runs,
    }
    path = ROOT / "benchmarks" / "results" / f"algorithms_cpu_{today}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (ROOT / "docs" / "algorithms.svg").write_text(picture(runs), encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
