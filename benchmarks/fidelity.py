"""What previews are worth on the tiny trained model: how they rank, and whether more candidates give more reward.

    python benchmarks/fidelity.py ranks [--seeds 0 1 2] [--prompts 16] [--candidates 24]
    python benchmarks/fidelity.py curve [--seeds 0 1 2] [--pools 24 48 96] [--steps 20] [--jobs 1]
    (both: [--write [FOLDER]])

ranks: candidates of dev captions by tiny-image's base (10 steps, float32), against previews of the same noise:
half-size decoding, fewer steps, emulated FP8 and emulated NVFP4 in the layers that Sol-RL's rule has at full size
(min_dim lowered to this model's width). Spearman, Kendall (tau-b) and overlap of the best quarter, over all candidates
of a prompt, means over prompts; every seed has noise of its own. The reward is discrete, so ties are many: "again" is
the same noise in another mini-batch, the most that any preview could reach. Half-size pictures are enlarged before they
are scored, because this reward counts pixels.

curve: DiffusionNFT on tiny-image with 24 trained of 24, 48 and 96 candidates a prompt (best_worst, everything in full),
4 prompts a step; the reward of a step is the mean over all that was drawn, which is the sampling policy's own. No claim
about 1024 px follows from pictures of 64.
"""

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PLOT = Path(__file__).parents[1] / "docs" / "pool_sizes.svg"
PACKAGES = ("torch", "diffusers", "transformers", "peft")
WIDTH = 96  # of tiny-image: what min_dim becomes
COLOURS = ("#888888", "#3b76af", "#c8553d", "#4f9d69")

# name -> (mode, steps, decode_scale)
PREVIEWS = {
    "again": ("peft", 10, 1.0),
    "half size": ("peft", 10, 0.5),
    "6 steps": ("peft", 6, 1.0),
    "6 steps, half size": ("peft", 6, 0.5),
    "emulated FP8": ("emulated_fp8", 10, 1.0),
    "emulated NVFP4": ("emulated_nvfp4", 10, 1.0),
    "emulated FP8, 6 steps": ("emulated_fp8", 6, 1.0),
    "emulated NVFP4, 6 steps": ("emulated_nvfp4", 6, 1.0),
}


# ---- ranks


class Ranks:
    """The tiny model with an adapter, its copies, and the shapes reward."""

    def __init__(self, asked: argparse.Namespace):
        import torch

        from sanarl.config import load
        from sanarl.models.load import load_model
        from sanarl.models.quantize import Rule
        from sanarl.models.replicas import Replica, ReplicaSettings
        from sanarl.rewards import build
        from sanarl.training.modelling import build_policy, model_settings

        self.asked = asked
        self.config = load("tiny-image-nft").config
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.policy = build_policy(self.config, load_model(model_settings(self.config), device))
        rule = Rule(self.config.rollout.engine.skip_modules, WIDTH)
        self.sources: dict[str, Any] = {"peft": self.policy}
        for mode in ("emulated_fp8", "emulated_nvfp4"):
            self.sources[mode] = Replica(self.policy, ReplicaSettings(mode, rule, "default", asked.candidates))
            self.sources[mode].sync()
        self.layers = {mode: str(s.report) for mode, s in self.sources.items() if mode != "peft"}
        self.mix = build({"shapes": 1.0})

    def rewards(self, prompts: list[str], seed: int, mode: str, steps: int, scale: float, batch: int):
        """(P * candidates,) rewards."""
        import torch
        import torch.nn.functional as F

        from sanarl.rollout.generate import Sampler, generate

        n = self.asked.candidates
        repeated = [prompt for prompt in prompts for _ in range(n)]
        ids = torch.arange(len(repeated))
        sampler = Sampler(steps, 1.0, "euler", 1.0, batch, decode_scale=scale)
        found = []
        for rows, _, media in generate(self.sources[mode], repeated, ids, ids // n, sampler, (seed, "fidelity")):
            if scale != 1.0:  # this reward counts pixels; those for photographs shrink pictures anyway
                media = F.interpolate(media[:, 0], scale_factor=1 / scale, mode="bilinear")[:, None]
            some = [repeated[i] for i in rows.tolist()]
            found.append(self.mix(media, some, [{}] * len(some)).total)
        return torch.cat(found)

    def seed(self, seed: int) -> dict[str, dict[str, float]]:
        """Preview -> measures."""
        import torch

        from sanarl.data.module import load as load_module
        from sanarl.maths.select import kendall, spearman, top_overlap

        items = load_module("sanarl.datasets.shapes").validation(self.config)
        start = seed * self.asked.prompts
        prompts = [items[(start + i) % len(items)]["prompt"] for i in range(self.asked.prompts)]
        n = self.asked.candidates
        full = self.rewards(prompts, seed, "peft", 10, 1.0, n)
        groups = torch.arange(len(full)) // n
        measures = {}
        for name, (mode, steps, scale) in PREVIEWS.items():
            batch = max(n // 2, 1) if name == "again" else n
            seen = self.rewards(prompts, seed, mode, steps, scale, batch)
            measures[name] = {
                "spearman": spearman(seen, full, groups),
                "kendall": kendall(seen, full, groups),
                "top_quarter": top_overlap(seen, full, groups, max(n // 4, 1)),
                "mean_reward": float(seen.mean()),
            }
            print(f"seed {seed}  {name:24} " + "  ".join(f"{k} {v:.3f}" for k, v in measures[name].items()), flush=True)
        return measures


def ranks(asked: argparse.Namespace) -> dict[str, Any]:
    import torch

    with torch.no_grad():
        bench = Ranks(asked)
        seeds = {seed: bench.seed(seed) for seed in asked.seeds}
    means = {
        name: {key: statistics.mean(seeds[seed][name][key] for seed in seeds) for key in seeds[asked.seeds[0]][name]}
        for name in PREVIEWS
    }
    return {
        "prompts_a_seed": asked.prompts,
        "candidates_a_prompt": asked.candidates,
        "layers": bench.layers,
        "means": means,
        "seeds": {str(seed): found for seed, found in seeds.items()},
    }


# ---- curve


def train(pool: int, seed: int, folder: Path, steps: int) -> None:
    """A run in a process of its own."""
    sets = {
        "rollout.n_candidates": pool,
        "rollout.n_generation": 24,
        "rollout.n_generation_mini_batch": 24,
        "train.train_batch_per_replica": 4 * 24,
        "train.train_policy.batch_size_per_optimize": 48,
        "train.max_num_steps": steps,
        "train.seed": seed,
        "train.output_dir": str(folder),
        "train.ckpt.enable_checkpoint": False,
        "validation.enable": False,
        "guards.enable": False,
        "logging.logger": [],
        "logging.multi_modal_log_interval": 10_000,
    }
    command = [sys.executable, "-m", "sanarl", "train", "--config", "tiny-image-nft"]
    command += [word for key, value in sets.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(f"pool {pool}, seed {seed}: {time.perf_counter() - started:.0f} s", flush=True)


def rewards_of(folder: Path) -> list[float]:
    """Mean reward of all that each step drew."""
    (file,) = folder.glob("*/metrics.jsonl")
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [line.get("pool/reward_mean", line["reward/mean"]) for line in lines if "reward/mean" in line]


def curve(asked: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        wanted = {(pool, seed): Path(scratch) / f"{pool}-{seed}" for pool in asked.pools for seed in asked.seeds}
        with ThreadPoolExecutor(asked.jobs) as workers:
            list(workers.map(lambda job: train(*job[0], job[1], asked.steps), wanted.items()))
        runs = {pool: {seed: rewards_of(wanted[pool, seed]) for seed in asked.seeds} for pool in asked.pools}
    last = max(asked.steps // 4, 1)
    ends = {pool: [statistics.mean(runs[pool][seed][-last:]) for seed in asked.seeds] for pool in asked.pools}
    for pool, values in ends.items():
        rounded = [round(v, 3) for v in values]
        print(f"24 of {pool}: reward of the last {last} steps {statistics.mean(values):.3f} {rounded}")
    means = [statistics.mean(ends[pool]) for pool in sorted(ends)]
    return {
        "steps": asked.steps,
        "trained_a_prompt": 24,
        "prompts_a_step": 4,
        f"reward_of_the_last_{last}_steps": {str(pool): values for pool, values in ends.items()},
        "in_the_papers_order": means == sorted(means),
        "rewards": {str(pool): {str(seed): values for seed, values in run.items()} for pool, run in runs.items()},
    }


def picture(rewards: dict[str, dict[str, list[float]]]) -> str:
    """Reward by step as SVG: seeds thin, their mean thick."""
    width, height, left, top = 480, 240, 44, 28
    every = [value for run in rewards.values() for values in run.values() for value in values]
    low, high = min(every), max(every)
    steps = max(len(values) for run in rewards.values() for values in run.values())

    def points(values: list[float]) -> str:
        across = [left + width * i / max(steps - 1, 1) for i in range(len(values))]
        down = [top + height * (1 - (value - low) / ((high - low) or 1)) for value in values]
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))

    parts = []
    for (pool, run), colour in zip(rewards.items(), COLOURS, strict=False):
        mean = [statistics.mean(values) for values in zip(*run.values(), strict=True)]
        lines = [(values, 0.6, 0.5) for values in run.values()] + [(mean, 2.2, 1.0)]
        parts += [
            f'<polyline fill="none" stroke="{colour}" stroke-width="{w}" opacity="{o}" points="{points(v)}"/>'
            for v, w, o in lines
        ]
        at = top + 14 + 16 * list(rewards).index(pool)
        parts.append(f'<text x="{left + 8}" y="{at}" fill="{colour}">24 of {pool}</text>')
    for value in (low, high):
        y = top + height * (1 - (value - low) / ((high - low) or 1))
        parts.append(f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{value:.2f}</text>')
    parts.append(f'<text x="{left}" y="16">mean reward of all candidates, by step (1 to {steps})</text>')
    size = f"{width + left + 16} {height + top + 16}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"


# ---- both


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ranks", "curve"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--candidates", type=int, default=24)
    parser.add_argument("--pools", type=int, nargs="+", default=[24, 48, 96])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    asked = options(arguments)
    started = time.perf_counter()
    found = ranks(asked) if asked.what == "ranks" else curve(asked)
    today = datetime.date.today().isoformat()
    result = {
        "benchmark": f"fidelity {asked.what}",
        "date": today,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "model": "tiny-image",
        "seconds": round(time.perf_counter() - started, 1),
        **found,
    }
    if asked.write is not None:
        asked.write.mkdir(parents=True, exist_ok=True)
        path = asked.write / f"fidelity_{asked.what}_{today}.json"
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {path}")
        if asked.what == "curve":
            plot = PLOT if asked.write == RESULTS else asked.write / PLOT.name
            plot.write_text(picture(found["rewards"]), encoding="utf-8")
            print(f"wrote {plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
