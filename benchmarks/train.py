"""What a step of training costs at full size on one GPU or several: SANA-1.5 1.6B, 1024 px, and SANA-Video 2B.

    python benchmarks/train.py [--only NAME ...] [--limit SECONDS] [--write [FOLDER]]

nft-baseline: DiffusionNFT on --samples pictures of which --fraction of the timesteps are trained, as peers run it:
eager with activation checkpointing, mini-batches of 9 and the autoencoder in float32. nft-as-written: the preset's own
numbers. nft: compiled blocks for training and rollout, decoder compiled in bfloat16, checkpointing and mini-batches as
policy.memory_plan = "auto" has them; nft-unfused: the same without train.fuse. sft-lora-baseline, sft-lora,
sft-baseline, sft: fine-tuning on --batch files, eager, checkpointed and uncached against compiled with cached latents
and embeddings. video-...: one clip of 41 frames of 480 x 832, eager and compiled. inner-loop, inner-loop-sft: whether
the host waits for the card inside the inner loop (torch's sync_debug_mode, and a trace), how busy the card is and with
what. resume: under train.deterministic steps 1 to 4 without a break, and broken off after step 2; the values must be
equal bit by bit. resume-free: the same without train.deterministic, where two runs without a break differ as well.

A figure is the median of the steps after the first, which warms up and compiles; see full_size.py for what is made and
left out. A variant that takes longer than --limit is broken off; the JSON is written again after each, and keeps what
an earlier call of the same day wrote of other variants. --tiny tries all of it on a CPU with a model of a few thousand
parameters. Several GPUs: benchmarks/scale.py.
"""

import argparse
import contextlib
import functools
import gc
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from full_size import HERE, WEIGHTS, Bench, make_pairs, overrides
from stages import free, head, keep, place

RESULTS = Path(__file__).parent / "results"
NFT_TARGETS = {"inner_step": (0.42, 0.36), "whole_step": (0.44, 0.36)}  # must, goal: shares of the baseline's time
EAGER: dict[str, Any] = {
    "train.compile": False,
    "train.fuse": False,
    "policy.model_gradient_checkpointing": True,
}
FAST: dict[str, Any] = {"train.compile": True, "policy.model_gradient_checkpointing": False}
PLANNED: dict[str, Any] = {"train.compile": True, "policy.memory_plan": "auto"}
COMPILED_ROLLOUT = {
    "rollout.engine.mode": "compile",
    "rollout.engine.decode_compile": True,
    "rollout.engine.decode_dtype": "bfloat16",
}
PEERS_ROLLOUT = {"rollout.engine.decode_dtype": "float32"}
BF16_ENCODERS = {"policy.diffusers.dtype": "bfloat16"}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "nft-baseline": ("sana-image-nft", EAGER | PEERS_ROLLOUT | {"train.train_policy.mini_batch": 9}),
    "nft-as-written": ("sana-image-nft", {}),
    "nft": ("sana-image-nft", PLANNED | COMPILED_ROLLOUT),
    "nft-unfused": ("sana-image-nft", PLANNED | COMPILED_ROLLOUT | {"train.fuse": False}),
    "sft-lora-baseline": ("sana-image-sft-lora", EAGER),
    "sft-lora": ("sana-image-sft-lora", FAST | BF16_ENCODERS | {"data.cache": "CACHE"}),
    "sft-baseline": ("sana-image-sft", EAGER),
    "sft": ("sana-image-sft", FAST | BF16_ENCODERS | {"data.cache": "CACHE"}),
    "video-sft-lora-baseline": ("sana-video-sft-lora", EAGER),
    "video-sft-lora": ("sana-video-sft-lora", FAST | BF16_ENCODERS),
    "video-nft-baseline": ("sana-video-nft", EAGER | PEERS_ROLLOUT),
    "video-nft": ("sana-video-nft", FAST | {"rollout.engine.decode_dtype": "bfloat16"}),
    "inner-loop": ("sana-image-nft", PLANNED | COMPILED_ROLLOUT),
    "inner-loop-sft": ("sana-image-sft-lora", FAST),
    "resume": ("sana-image-sft-lora", EAGER | {"train.deterministic": True}),
    "resume-free": ("sana-image-sft-lora", EAGER | {"train.deterministic": False}),
}
SMALL = {"inner-loop": 24, "inner-loop-sft": 16, "resume": 2, "resume-free": 2, "video-nft": 2, "video-nft-baseline": 2}


def has_pictures(name: str) -> bool:
    """Whether a variant reads files."""
    return name.startswith("sft")


def chosen(name: str, asked: argparse.Namespace, cache: str) -> list[str]:
    """The overrides of a variant."""
    preset, own = VARIANTS[name]
    if has_pictures(name):
        own = own | {"train.train_policy.dataset.local_dir": str(Path(cache, "pictures"))}
    rl, clips = preset.endswith("nft"), "video" in preset
    samples = SMALL.get(name, asked.samples if rl else 1 if clips else asked.batch)
    if rl:
        own = own | {"policy.diffusers.timesteps_fraction": asked.fraction}
    own = {key: str(Path(cache, name)) if value == "CACHE" else value for key, value in own.items()}
    mini = None if rl or clips else min(8, samples)
    return [*overrides(preset, own, samples, asked.steps, asked.tiny, mini), *asked.set]


def resumed(bench: Bench, sets: list[str]) -> dict[str, Any]:
    """Whether four steps with a break after the second end with the values of four without, of which there are two."""
    from sanarl.config import load
    from sanarl.runtime import checkpoint
    from sanarl.training import build, run

    ends: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as place:
        for folder, resume in (("whole", "never"), ("again", "never"), ("broken", "never"), ("broken", "step_2")):
            keys = {
                "train.max_num_steps": 4,
                "train.output_dir": str(Path(place, folder)),
                "train.ckpt.enable_checkpoint": True,
                "train.ckpt.save_freq": 2,
                "train.ckpt.export_safetensors": False,
            }
            config = load("sana-image-sft-lora", [*sets, *(f"{k}={json.dumps(v)}" for k, v in keys.items())])
            if resume != "never":
                (resume,) = map(str, Path(place, folder).glob(f"*/checkpoints/{resume}"))
            real = build.parts.__defaults__
            build.parts.__defaults__ = (bench.load,)
            try:
                found = run.run(config, str(HERE), resume)
            finally:
                build.parts.__defaults__ = real
            saved = checkpoint.read(found.folder / "checkpoints" / "step_4", config.config.identity())
            ends[folder] = saved["policy"]["sets"]["learner"]
            free()

    def apart(other: str) -> float:
        pairs = [(ends["whole"][name].double(), ends[other][name].double()) for name in ends["whole"]]
        return float(sum((a - b).square().sum() for a, b in pairs) ** 0.5)

    size = float(sum(value.double().square().sum() for value in ends["whole"].values()) ** 0.5)
    return {
        "equal_bit_by_bit": apart("broken") == 0,
        "distance_of_values": {"resumed": apart("broken"), "run_again": apart("again"), "their_norm": size},
    }


def traced(bench: Bench, preset: str, sets: list[str]) -> dict[str, Any]:
    """Whether the host waits for the card inside the inner loop, and what the card does there.

    Of three steps the first warms up, the second counts what torch's sync_debug_mode warns of, and the third is traced.
    """
    from sanarl.runtime import step

    real, found, calls = step.back_up, dict[str, Any](), []

    def watched(*arguments):
        calls.append(1)
        if len(calls) == 2:
            with warned(bench.cuda) as lines:
                sums = real(*arguments)
            found["synchronising_operations"] = lines
            return sums
        if len(calls) == 3:
            return profiled(bench.cuda, lambda: real(*arguments), found)
        return real(*arguments)

    step.back_up = watched
    try:
        bench.steps(preset, [*sets, "train.max_num_steps=3"], str(HERE))
    finally:
        step.back_up = real
    return found


@contextlib.contextmanager
def warned(cuda: bool) -> Iterator[list[str]]:
    """Collect what torch says of every operation in the block for which the host waits."""
    import torch

    lines: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield lines
        finally:
            if cuda:
                torch.cuda.set_sync_debug_mode("default")
    lines += [f"{w.filename}:{w.lineno}: {w.message}" for w in caught if "synchroniz" in str(w.message)]


def profiled(cuda: bool, work: Callable[[], Any], found: dict[str, Any]) -> Any:
    """Do ``work`` under torch's profiler and put into ``found`` what it saw: calls that wait, copies, kernels."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    def wait() -> None:
        if cuda:
            torch.cuda.synchronize()

    wait()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as trace:
        started = time.perf_counter()
        done = work()
        host = time.perf_counter() - started
        wait()
        everything = time.perf_counter() - started
    rows = trace.key_averages()
    waits = {row.key: row.count for row in rows if row.key.startswith("cuda") and "Synchronize" in row.key}
    kernels = [row for row in rows if row.device_type == torch.autograd.DeviceType.CUDA]
    busy = sum(row.self_device_time_total for row in kernels) / 1e6
    found |= {
        "host_s": round(host, 4),
        "device_s": round(everything, 4),
        "device_busy": round(busy / everything, 3),
        "calls_that_wait": waits,  # one is the benchmark's own at the end
        "copies": {row.key: row.count for row in kernels if "Memcpy" in row.key},
        "kernels_ms": {
            row.key[:100]: [round(row.self_device_time_total / 1e3, 2), row.count]
            for row in sorted(kernels, key=lambda row: -row.self_device_time_total)[:25]
        },
    }
    return done


def ratios(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Every variant's time as a share of its baseline's in the same call."""
    done = {run["name"]: run for run in runs if "medians" in run}
    found: dict[str, Any] = {}
    for name, run in done.items():
        base = done.get(f"{name.removesuffix('-as-written').removesuffix('-unfused')}-baseline")
        if base is None or base["call"] != run["call"]:
            continue
        shares = {
            "inner_step": run["ms_trained_a_sample_and_timestep"] / base["ms_trained_a_sample_and_timestep"],
            "whole_step": whole_step(run) / whole_step(base),
        }
        found[name] = {key: round(value, 3) for key, value in shares.items()}
        if name == "nft":
            found["nft_holds"] = {key: shares[key] <= must for key, (must, _) in NFT_TARGETS.items()}
    return found


def whole_step(run: dict[str, Any], timesteps: int = 9) -> float:
    """Milliseconds of a sample's whole step with the preset's timesteps trained: what was trained is scaled up."""
    outside = run["ms_a_sample"] - run["ms_trained_a_sample_and_timestep"] * run["timesteps"]
    scale = timesteps if "nft" in run["name"] else run["timesteps"]
    return outside + run["ms_trained_a_sample_and_timestep"] * scale


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--steps", type=int, default=3, help="the first warms up and compiles")
    parser.add_argument("--samples", type=int, default=72, help="pictures of a rollout; a multiple of 24")
    parser.add_argument("--batch", type=int, default=16, help="pictures of a step of fine-tuning")
    parser.add_argument("--fraction", type=float, default=0.3, help="of the timesteps that are trained")
    parser.add_argument("--reward-seconds", type=float, default=0.05)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that a variant may take")
    parser.add_argument("--text-layers", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS)
    return parser.parse_args(arguments)


def line(run: dict[str, Any], matmul: float | None) -> str:
    """A variant for people."""
    if "medians" not in run:
        return json.dumps({k: v for k, v in run.items() if k != "set"})
    medians = {key: value for key, value in run["medians"].items() if key.startswith("time/")}
    peak, tflops = max(run["memory_peak_gib"]), run["trained_tflops_a_rank"]
    share = f" ({tflops / matmul:.1%} of the card's matrix products)" if matmul else ""
    return (
        f"{run['name']}: {run['ms_a_sample']} ms a sample, {run['ms_trained_a_sample_and_timestep']} ms trained a "
        f"sample and timestep = {tflops} TFLOP/s{share}; {medians}; first step {run['first_step_s']} s; {peak} GiB; "
        f"losses {run['losses']}; {run['memory_plan']}"
    )


def main(arguments: list[str] | None = None) -> int:
    asked = options(arguments)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # train.deterministic needs it
    started, bench = time.perf_counter(), Bench(asked.tiny, asked.text_layers, asked.reward_seconds)
    cache = tempfile.TemporaryDirectory()
    result = head("train", bench.card) | {
        "weights": "random; tiny" if asked.tiny else WEIGHTS,
        "reward": f"constant_time: {asked.reward_seconds} s a batch",
        "matmul_tflops": bench.matmul_tflops(),
        "runs": [],
    }
    print(f"{bench.card}: bf16 products of 8192 x 8192 at {result['matmul_tflops']} TFLOP/s", flush=True)
    call = time.strftime("%H:%M:%S")
    if asked.write is not None and (file := place(asked.write, result)).exists():
        before = json.loads(file.read_text(encoding="utf-8"))["runs"]
        result["runs"] = [run for run in before if run["name"] not in asked.only]
    if any(map(has_pictures, asked.only)):
        make_pairs(Path(cache.name, "pictures"), asked.batch, 32 if asked.tiny else 1024)
    for name in asked.only:
        sets = chosen(name, asked, cache.name)
        module = None if has_pictures(name) else str(HERE)
        work = None
        if name.startswith("resume"):
            work = functools.partial(resumed, bench, sets)
        elif name.startswith("inner-loop"):
            work = functools.partial(traced, bench, VARIANTS[name][0], sets)
        result["runs"].append(bench.measure(name, VARIANTS[name][0], sets, asked.limit, work, module) | {"call": call})
        result["shares_of_the_baseline"] = ratios(result["runs"])
        print(line(result["runs"][-1], result["matmul_tflops"]), flush=True)
        if asked.write is not None:
            print(f"wrote {keep(asked.write, result)}, {time.perf_counter() - started:.0f} s in", flush=True)
    print(json.dumps(result["shares_of_the_baseline"], indent=1))
    with contextlib.suppress(OSError):
        cache.cleanup()
    gc.collect()
    new = [run for run in result["runs"] if run["call"] == call]
    differs = [run for run in new if run["name"] == "resume" and run.get("equal_bit_by_bit") is False]
    return bool(differs) or any("failed" in run for run in new)


if __name__ == "__main__":
    sys.exit(main())
