"""Do rewards hold up sampling? Steps of tiny-image-nft with a scorer that takes a second of a step, and without it.

    python benchmarks/reward_overlap.py [--seconds 1.0] [--steps 6] [--rounds 2] [--write]

The scorer sleeps, as a scorer on another device or behind a service leaves this process alone, and writes down when it
was at work. What it adds to a step is how long the step waits after the last batch was sampled: from the last call's
begin to its end. Runs with and without it take turns and their fastest steps are printed beside that, but two runs on a
machine that does other work differ by more than what is measured. The timeline shows sampling, and each batch that was
scored meanwhile. --write keeps the figures under benchmarks/results.
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
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
MOST_ADDED = 0.10
SAMPLES = 64  # of a step of the preset

REWARD = """
import json, os, time
import torch


def waits(media, prompts, metadata):
    begun = time.time()
    time.sleep(float(os.environ["WAIT_SECONDS"]) * len(media) / float(os.environ["WAIT_SAMPLES"]))
    with open(os.environ["WAIT_LOG"], "a") as log:
        log.write(json.dumps([begun, time.time(), len(media)]) + "\\n")
    return media.flatten(1).mean(1)
"""


def run(folder: Path, seconds: float, steps: int) -> tuple[list[dict], list[list[float]]]:
    """Metrics of every step, and [begin, end, samples] of every call of the scorer."""
    folder.mkdir()
    (folder / "waiting.py").write_text(REWARD)
    log = folder / "calls.jsonl"
    log.touch()
    sets = [f"train.output_dir={folder}", f"train.max_num_steps={steps}", "validation.enable=false"]
    sets += ["train.train_policy.reward_function={ 'waiting.py:waits' = 1.0 }", "train.ckpt.enable_checkpoint=false"]
    environment = os.environ | {"WAIT_SECONDS": str(seconds), "WAIT_SAMPLES": str(SAMPLES), "WAIT_LOG": str(log)}
    command = [sys.executable, "-m", "sanarl", "train", "--config", "tiny-image-nft"]
    command += [part for item in sets for part in ("--set", item)]
    subprocess.run(command, check=True, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in next(folder.glob("*/metrics.jsonl")).read_text().splitlines()]
    calls = [json.loads(line) for line in log.read_text().splitlines()][1:]  # not the trial
    return [line for line in lines if "loss" in line][1:], calls


def by_step(calls: list[list[float]]) -> list[list[list[float]]]:
    """The calls of each step but the first."""
    steps, count = [], 0
    for call in calls:
        if count % SAMPLES == 0:
            steps.append([])
        steps[-1].append(call)
        count += int(call[2])
    return steps[1:]


def timeline(step: dict, calls: list[list[float]], width: int = 72) -> list[str]:
    """The calls of a step against its rollout, which ends with the last of them, as bars."""
    end = calls[-1][1]
    start = end - step["time/rollout"]
    scale = width / (end - start)
    lines = [f"{'rollout':10}|{'=' * width}| {step['time/rollout']:.2f} s"]
    for begun, ended, samples in calls:
        left, right = int((begun - start) * scale), int((ended - start) * scale)
        bar = (" " * max(left, 0) + "#" * max(right - max(left, 0), 1))[:width]
        lines.append(f"{f'{samples:.0f} scored':10}|{bar:{width}}| {ended - begun:.2f} s")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    times: dict[float, list[float]] = {0.0: [], asked.seconds: []}
    rollouts, added, lines = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(asked.rounds):
            for seconds, taken in times.items():
                steps, calls = run(Path(folder) / f"{turn}-{seconds}", seconds, asked.steps)
                taken += [step["time/rollout"] + step["time/train"] for step in steps]
                if not seconds:
                    continue
                for step, own in zip(steps, by_step(calls), strict=True):
                    wait = own[-1][1] - own[-1][0]
                    added.append(wait / (step["time/rollout"] + step["time/train"] - wait))
                    rollouts.append(step["time/rollout"])
                    lines = timeline(step, own)
    figures = {
        "benchmark": "reward_overlap",
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "scorer_seconds_per_step": asked.seconds,
        "rollout_seconds": round(statistics.median(rollouts), 3),
        "added": round(statistics.median(added), 4),
        "accepted": f"added under {MOST_ADDED} when the rollout takes longer than the scorer",
        "fastest_step_without": round(min(times[0.0]), 3),
        "fastest_step_with": round(min(times[asked.seconds]), 3),
    }
    print("\n".join(lines))
    print(json.dumps(figures, indent=2))
    if asked.write:
        name = f"reward_overlap_cpu_{figures['date']}.json"
        (RESULTS / name).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if figures["added"] >= MOST_ADDED and figures["rollout_seconds"] > asked.seconds:
        sys.exit(f"the scorer adds {figures['added']:.1%} to a step")


if __name__ == "__main__":
    main()
