"""The same training on 1, 2, 4 and 8 GPUs, or as many as there are: SANA-1.5 1.6B, 1024 px, random weights.

    python benchmarks/scale.py [--sizes N ...] [--only NAME ...] [--total SECONDS] [--with FILE ...] [--write [FOLDER]]

Starts the ranks itself, one number of them after another, and times steps after one that warms up:

nft: sana-image-nft as written (eager, checkpointed, mini-batches of 9). nft-fast: compiled blocks, compiled rollout and
decoder, no checkpointing, mini-batches of 24. sft: full fine-tuning by FSDP2 over all ranks; hsdp: two copies, each
over half of the ranks. sol_rl-fp8: sana-image-nft-sol_rl-fp8, 24 of 96 candidates, beside Sol-RL's published iteration.
equal-...: the same few samples in mini-batches of one on any number of ranks; losses must agree.

Weak scaling unless --strong: every rank has as many samples a step however many ranks there are, so a perfect machine
takes as long for a step of N ranks as of one; efficiency is samples/s of N ranks over N times those of one. With
--strong the samples are those of one rank, shared by all. Only --fraction of an RL preset's timesteps is trained, the
time of all of them is computed from that, and named so. The reward is ``constant_time``, which is none; see
full_size.py for what else is made and left out. A variant that takes longer than --limit is broken off, nothing begins
after --total, and what was not run is named. --with takes in results of other sizes, which may have run at the same
time on other GPUs of the machine. --tiny tries all of it on a CPU over gloo.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from stages import head, keep

RESULTS = Path(__file__).parent / "results"
TOLERANCE = 0.01
"""Of losses across numbers of ranks, relative. Every sample is computed by itself, so what differs is the order of sums
and, in bfloat16, captions that are embedded together in other numbers."""
EAGER = {"train.compile": False, "policy.model_gradient_checkpointing": True}
FAST = {
    "train.compile": True,
    "policy.model_gradient_checkpointing": False,
    "rollout.engine.mode": "compile",
    "rollout.engine.decode_compile": True,
    "rollout.engine.decode_dtype": "bfloat16",
}
TINY_SOL = {
    "rollout.n_candidates": 8,
    "rollout.n_generation": 4,
    "rollout.preview.n_regenerate": 4,
    "rollout.n_generation_mini_batch": 4,
    "rollout.preview.mode": "emulated_fp8",
    "rollout.engine.mode": "peft",
    "rollout.engine.decode_compile": False,
}


class Plan(NamedTuple):
    """A variant: its preset, samples (of a rank, or of a step where losses are compared) and keys."""

    preset: str
    samples: int
    keys: dict[str, Any]
    mini_batch: int | None = None
    least: int = 1
    """Ranks that it needs."""
    only_largest: bool = False


PLANS = {
    "nft": Plan("sana-image-nft", 24, {}),
    "nft-fast": Plan("sana-image-nft", 24, FAST, 24),
    "sft": Plan("sana-image-sft", 8, EAGER | {"SHARD": "all"}, 8),
    "hsdp": Plan("sana-image-sft", 8, EAGER | {"SHARD": "half"}, 8, least=4),
    "sol_rl-fp8": Plan("sana-image-nft-sol_rl-fp8-pickscore", 24, {}, only_largest=True),
    "equal-sft-lora": Plan("sana-image-sft-lora", 8, EAGER, 1),
    "equal-nft": Plan("sana-image-nft", 8, EAGER | {"rollout.n_generation_mini_batch": 1}, 1),
    "equal-sft": Plan("sana-image-sft", 8, EAGER | {"SHARD": "all"}, 1),
    "equal-hsdp": Plan("sana-image-sft", 8, EAGER | {"SHARD": "half"}, 1, least=4),
}
DEFAULT = ["nft", "sft", "hsdp", "equal-sft-lora", "equal-nft", "equal-sft", "equal-hsdp", "sol_rl-fp8"]
PUBLISHED = {
    "seconds": 76.0,
    "of": "Sol-RL, an iteration on 8 B200s: 48 prompts, 24 of 96 candidates train",
    "trained_samples": 1152,
    "differences": [
        "B200 there; previews in NVFP4 there, in FP8 and at half size here",
        "SANA 1.0 there, the shapes of SANA-1.5 1.6B here, with random weights and a stand-in for the text encoder",
        "a reward model there, a constant-time function here",
        "adapters merged into the copies there, live here",
        "fewer prompts a step here; seconds are scaled to 1152 trained samples",
        "all trained timesteps there; here --fraction of them is timed and the rest computed from it",
    ],
}


# ---- a rank


def sets_of(name: str, asked: argparse.Namespace, ranks: int) -> list[str]:
    """The overrides of a variant on so many ranks."""
    from full_size import overrides

    plan = PLANS[name]
    keys, equal = dict(plan.keys), name.startswith("equal-")
    # FSDP2 on one rank is no sharding: the sizes only say how the batch's number is written.
    shard = {"all": (ranks, 1), "half": (ranks // 2, 2)}.get(keys.pop("SHARD", ""), (1, 1))
    keys |= {"policy.parallelism.dp_shard_size": shard[0], "policy.parallelism.dp_replicate_size": shard[1]}
    tiny_sol = asked.tiny and name == "sol_rl-fp8"
    rank = 4 if tiny_sol else 8 if asked.tiny and not equal else (asked.samples or plan.samples)
    samples = plan.samples if equal else rank if asked.strong else rank * ranks
    if "nft" in plan.preset:
        keys["policy.diffusers.timesteps_fraction"] = asked.fraction
        # A group of one prompt for every rank, whatever their number; fewer samples are one group.
        keys.setdefault("rollout.n_generation", min(samples, 24, rank))
        keys.setdefault("rollout.n_generation_mini_batch", keys["rollout.n_generation"])
    keys |= TINY_SOL if tiny_sol else {}
    steps = asked.equal_steps if equal else asked.steps + 1
    return [*overrides(plan.preset, keys, samples, steps, asked.tiny, plan.mini_batch), *asked.set]


def child(asked: argparse.Namespace) -> int:
    """Run variants on this rank; the main one writes what was found after each. Ends at the first that fails."""
    from full_size import Bench

    bench = Bench(asked.tiny, asked.text_layers, asked.reward_seconds, timeout_s=asked.limit)
    found: dict[str, Any] = {"card": bench.card, "runs": []}
    if bench.world.main:
        found["matmul_tflops"] = bench.matmul_tflops()
    for name in asked.only:
        sets = sets_of(name, asked, bench.world.size)
        found["runs"].append(bench.measure(name, PLANS[name].preset, sets, asked.limit))
        if bench.world.main:
            written = asked.child.with_suffix(".part")
            written.write_text(json.dumps(found), encoding="utf-8")
            written.replace(asked.child)
        if "failed" in found["runs"][-1] and bench.world.size > 1:
            os._exit(1)  # ranks no longer agree where they are
    bench.world.stop()
    return 0


# ---- what starts ranks


def started(ranks: int, names: list[str], asked: argparse.Namespace, out: Path) -> list[subprocess.Popen]:
    """Ranks as torchrun starts them, with NVLink multicast off."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, "--child", str(out), "--only", *names, "--fraction", str(asked.fraction)]
    command += ["--steps", str(asked.steps), "--equal-steps", str(asked.equal_steps), "--limit", str(asked.limit)]
    command += ["--text-layers", str(asked.text_layers), "--reward-seconds", str(asked.reward_seconds)]
    command += [*(["--tiny"] if asked.tiny else []), *(["--strong"] if asked.strong else [])]
    command += ["--samples", str(asked.samples)] if asked.samples else []
    command += [part for each in asked.set for part in ("--set", each)]
    shared = os.environ | {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "HF_HUB_OFFLINE": "1"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    shared |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "4")}
    shared.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return [
        subprocess.Popen(command, env=shared | {"RANK": str(n), "LOCAL_RANK": str(n)}, start_new_session=True)
        for n in range(ranks)
    ]


def waited(ranks: list[subprocess.Popen], seconds: float) -> str | None:
    """Wait for all ranks; when one fails or it takes too long, end the others. What went wrong, if anything did."""
    end, wrong = time.monotonic() + seconds, None
    try:
        while any(rank.poll() is None for rank in ranks):
            codes = [rank.poll() for rank in ranks]
            if any(codes):
                wrong = f"ranks ended with {codes}"
                time.sleep(2)  # the main rank may be writing
                break
            if time.monotonic() > end:
                wrong = f"not done after {seconds:.0f} s"
                break
            time.sleep(0.1)
        codes = [rank.poll() for rank in ranks]
        return wrong or (f"ranks ended with {codes}" if any(codes) else None)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()


def of_size(ranks: int, names: list[str], asked: argparse.Namespace, end: float) -> tuple[dict[str, Any], list[dict]]:
    """Every variant on so many ranks, in as few starts as it takes: a start ends where a variant fails."""
    runs: list[dict[str, Any]] = []
    about: dict[str, Any] = {}
    while left := [name for name in names if name not in {run["name"] for run in runs}]:
        seconds = end - time.monotonic()
        if seconds < asked.least:
            runs += [{"name": name, "ranks": ranks, "not_run": f"--total {asked.total:g} s"} for name in left]
            break
        with tempfile.TemporaryDirectory() as place:
            out = Path(place, "found.json")
            wrong = waited(started(ranks, left, asked, out), seconds)
            found = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"runs": []}
        runs += found.pop("runs")
        about |= found
        if wrong and not any("failed" in run for run in runs if run["name"] in left):
            now = next(name for name in left if name not in {run["name"] for run in runs})
            runs.append({"name": now, "ranks": ranks, "failed": wrong})
    return about, runs


# ---- what it means


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Efficiency of every variant by its ranks, how far losses are apart, and Sol-RL's iteration."""
    done = {(run["name"], run["ranks"]): run for run in runs if "medians" in run}
    found: dict[str, Any] = {"efficiency": {}, "losses": {}}
    for (name, ranks), run in done.items():
        # Two copies of one rank each do not exist: HSDP is measured against the same training on one rank.
        one = done.get((name.replace("hsdp", "sft"), 1))
        if name.startswith("equal-"):
            if one is not None and ranks > 1:
                far = max(abs(a - b) / abs(b) for a, b in zip(run["losses"], one["losses"], strict=True))
                found["losses"][f"{name} on {ranks}"] = {"largest_relative_difference": far, "holds": far <= TOLERANCE}
        elif one is not None and ranks > 1:
            share = run["samples_a_second"] / one["samples_a_second"] / ranks
            stages = {
                key: round(one["medians"][key] * run["samples_a_step"] / (one["samples_a_step"] * ranks) / value, 3)
                for key, value in run["medians"].items()
                if key in ("time/rollout", "time/train") and value
            }
            found["efficiency"][f"{name} on {ranks}"] = {"step": round(share, 3), **stages}
        if name == "sol_rl-fp8":
            seconds = whole_step(run, 6) * PUBLISHED["trained_samples"] / run["samples_a_step"]
            found["sol_rl"] = {"ranks": ranks, "seconds_for_1152_trained_computed": round(seconds, 1), **PUBLISHED}
    return found


def whole_step(run: dict[str, Any], timesteps: int) -> float:
    """Seconds of a step with so many timesteps trained, computed from the ones that were."""
    train = run["medians"]["time/train"]
    return run["medians"]["time/step"] + train * (timesteps / run["timesteps"] - 1)


def table(runs: list[dict[str, Any]]) -> str:
    """A line a run."""
    lines = ["variant         ranks samples   step s  rollout    train samples/s  sum ms  reduce ms  GiB a rank"]
    for run in runs:
        if "medians" not in run:
            lines.append(f"{run['name']:15} {run['ranks']:5} {run.get('failed') or 'not run: ' + run['not_run']}")
            continue
        m = run["medians"]
        peaks = sorted({min(run["memory_peak_gib"]), max(run["memory_peak_gib"])})
        lines.append(
            f"{run['name']:15} {run['ranks']:5} {run['samples_a_step']:7} {m['time/step']:8.3f} "
            f"{m.get('time/rollout', 0):8.3f} {m['time/train']:8.3f} {run['samples_a_second']:9.2f} "
            f"{run.get('gradient_sum_ms', 0):7.2f} {run.get('all_reduce_ms', 0):10.2f}  {' to '.join(map(str, peaks))}"
        )
    return "\n".join(lines)


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", help="numbers of ranks; otherwise 1, 2, 4, 8 as there are GPUs")
    parser.add_argument("--only", nargs="+", choices=list(PLANS), default=DEFAULT)
    parser.add_argument("--steps", type=int, default=3, help="that are timed, after one that is not")
    parser.add_argument("--equal-steps", type=int, default=2, help="of runs whose losses are compared")
    parser.add_argument("--samples", type=int, help="of a rank and step, where speed is measured")
    parser.add_argument("--fraction", type=float, default=0.2, help="of an RL preset's timesteps that are trained")
    parser.add_argument("--strong", action="store_true", help="share the samples of one rank")
    parser.add_argument("--reward-seconds", type=float, default=0.05)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that a variant may take")
    parser.add_argument("--total", type=float, default=400.0, help="seconds that everything may take")
    parser.add_argument("--least", type=float, default=30.0, help="seconds that must be left for another start")
    parser.add_argument("--text-layers", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--with", dest="others", nargs="+", type=Path, default=[], help="results to compare with")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def sizes(asked: argparse.Namespace) -> list[int]:
    """One first, then the largest: what matters most is there when time ends."""
    if asked.sizes:
        return asked.sizes
    if asked.tiny:
        return [1, 2]
    import torch

    there = [n for n in (1, 2, 4, 8) if n <= torch.cuda.device_count()] or [1]
    return [*there[:1], *reversed(there[1:])]


def main(arguments: list[str] | None = None) -> int:
    asked = options(arguments)
    if asked.child is not None:
        return child(asked)
    begun, found = time.monotonic(), sizes(asked)
    result: dict[str, Any] = {}
    runs: list[dict[str, Any]] = [run for file in asked.others for run in json.loads(file.read_text())["runs"]]
    for ranks in found:
        names = [
            name
            for name in asked.only
            if ranks >= PLANS[name].least and (ranks == max(found) or not PLANS[name].only_largest)
        ]
        about, new = of_size(ranks, names, asked, begun + asked.total)
        runs += new
        result = head("scale", result.get("card") or about.pop("card", "unknown")) | result | about
        result |= {
            "weights": "random; tiny" if asked.tiny else "random, shapes of SANA1.5_1.6B_1024px",
            "scaling": "strong" if asked.strong else "weak",
            "reward": f"constant_time: {asked.reward_seconds} s a batch",
            "tolerance_of_losses": TOLERANCE,
            **summary(runs),
            "runs": runs,
        }
        print(f"\n{table(runs)}\n{time.monotonic() - begun:.0f} s in", flush=True)
        if asked.write is not None:
            print(f"wrote {keep(asked.write, result, f'_{max(found)}_ranks')}", flush=True)
    print(json.dumps({key: result.get(key) for key in ("efficiency", "losses", "sol_rl") if key in result}, indent=1))
    apart = any(not each["holds"] for each in result["losses"].values())
    return apart or any("medians" not in run for run in runs)


if __name__ == "__main__":
    sys.exit(main())
