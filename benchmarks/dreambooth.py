"""LoRA fine-tuning at 1024 px beside diffusers' own example, the same work in the same run.

    python benchmarks/dreambooth.py SCRIPT [--write [FOLDER]]

SCRIPT is a copy of examples/dreambooth/train_dreambooth_lora_sana.py of huggingface/diffusers, run as it is: its own
arguments, its own loop. It needs accelerate, torchvision and tensorboard besides what this package needs, datasets
(with pandas, pyarrow, dill, multiprocess, xxhash) for the runs by batch, and no network. What it logs after each step
is listened to, which is where its steps end, and it is ended after --steps.

Both train the same adapter (rank, alpha, layers) on the same pictures with --batch of them an optimiser step, in bf16,
from the same folder with random weights of SANA-1.5 1.6B's shapes (speed does not depend on values; the text encoder is
a stand-in of few layers). Every run is a process of its own:

example: a folder of pictures and one prompt, which the script takes one picture at a time (with more its prompt does
not fit the batch), accumulating gradients, as its README has it. example-batch: the whole batch at once, with a caption
a picture, which the script reads through the package datasets. ours: the preset with compiled blocks, all at once.
...-cached: latents are computed once; otherwise in every step by an autoencoder in float32. Nobody checkpoints
activations unless --checkpointing says so. --tiny tries all of it on a CPU.
"""

import argparse
import contextlib
import hashlib
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from full_size import WEIGHTS, Bench, make_pairs, overrides, pictures
from stages import head, keep

RESULTS = Path(__file__).parent / "results"
RUNS = ("ours", "ours-cached", "example", "example-cached", "example-batch", "example-batch-cached")
LAYERS = [f"attn{i}.{name}" for i in (1, 2) for name in ("to_q", "to_k", "to_v", "to_out.0")]
RANK, PROMPT = 4, "a quiet harbour at dusk"
WARM = 2
"""Steps that are not timed."""


class Enough(BaseException):
    """All steps that are wanted were taken; nothing that a script catches."""


def make_model(folder: Path, tiny: bool, text_layers: int) -> None:
    """The folder that both load."""
    import torch

    from sanarl.models.tiny import random_pipeline

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    (random_pipeline() if tiny else pictures(device, text_layers)).save_pretrained(folder)


def example(work: Path, asked: argparse.Namespace, cached: bool, by_batch: bool) -> dict[str, Any]:
    """Run the script until it has taken its steps."""
    import torch
    from accelerate import Accelerator

    accumulated = 1 if by_batch else asked.batch
    times: list[float] = []
    losses: list[float] = []
    log = Accelerator.log

    def listened(self, values, *arguments, **named):
        log(self, values, *arguments, **named)  # the loss has been fetched, so the device is done
        times.append(time.perf_counter())
        losses.append(values["loss"])
        if len(times) == WARM * accumulated and torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        if len(times) == (asked.steps + WARM) * accumulated:
            raise Enough

    words = {
        "pretrained_model_name_or_path": work / "model",
        **(
            {"dataset_name": work / "captioned", "caption_column": "text"}
            if by_batch
            else {"instance_data_dir": work / "pictures"}
        ),
        "instance_prompt": PROMPT,
        "output_dir": work / "out",
        "resolution": 32 if asked.tiny else 1024,
        "max_sequence_length": 16 if asked.tiny else 300,
        "mixed_precision": "no" if asked.tiny else "bf16",
        "rank": RANK,
        "lora_alpha": RANK,
        "lora_layers": ",".join(LAYERS),
        "train_batch_size": asked.batch // accumulated,
        "gradient_accumulation_steps": accumulated,
        "cache_dir": work / "datasets",
        "max_train_steps": asked.steps + WARM + 1,
        "seed": 0,
    }
    sys.argv = [str(asked.script), *(part for key, value in words.items() for part in (f"--{key}", str(value)))]
    sys.argv += ["--center_crop", *(["--cache_latents"] if cached else [])]
    sys.argv += ["--gradient_checkpointing"] if asked.checkpointing else []
    Accelerator.log = listened
    with contextlib.suppress(Enough):
        runpy.run_path(str(asked.script), run_name="__main__")
    seconds = (times[-1] - times[WARM * accumulated - 1]) / asked.steps
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    return {"seconds": seconds, "peak_gib": peak, "losses": losses, "command": sys.argv}


def ours(work: Path, asked: argparse.Namespace, cached: bool) -> dict[str, Any]:
    """The preset with the same numbers."""
    from sanarl.models.load import load_model

    keys: dict[str, Any] = {
        "policy.model_name_or_path": str(work / "model"),
        "policy.lora.r": RANK,
        "policy.lora.lora_alpha": RANK,
        "policy.lora.target_modules": LAYERS,
        "policy.model_gradient_checkpointing": asked.checkpointing,
        "train.compile": asked.compile,
        "train.train_policy.dataset.local_dir": str(work / "pairs"),
        "train.train_policy.dataloader_num_workers": 4,
    }
    keys |= {"data.cache": str(work / "cache")} if cached else {}
    keys |= {"train.param_dtype": "float32"} if asked.tiny else {}
    bench = Bench(asked.tiny, asked.text_layers, 0.0)
    bench.load = load_model
    preset = "sana-image-sft-lora"
    sets = overrides(preset, keys, asked.batch, asked.steps + WARM, asked.tiny, asked.batch)
    found = bench.steps(preset, sets, None, WARM)
    peak = max(found["memory_peak_gib"])
    return {"seconds": found["medians"]["time/step"], "peak_gib": peak, "losses": found["losses"], "command": sets}


def child(name: str, asked: argparse.Namespace) -> None:
    """One run, in this process."""
    cached = name.endswith("-cached")
    if name.startswith("ours"):
        found = ours(asked.work, asked, cached)
    else:
        found = example(asked.work, asked, cached, "-batch" in name)
    found |= {"name": name, "images_a_second": round(asked.batch / found["seconds"], 3)}
    (asked.work / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", type=Path)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--steps", type=int, default=6, help=f"that are timed, after {WARM}")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that a run may take")
    parser.add_argument("--text-layers", type=int, default=2)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--child", choices=RUNS, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def started(name: str, arguments: list[str], work: Path, limit: float) -> dict[str, Any]:
    """One run in a process of its own."""
    words = [sys.executable, __file__, *arguments, "--work", str(work), "--child", name]
    shared = os.environ | {"HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(words, env=shared, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"name": name, "failed": f"not done after {limit:g} s"}
    file = work / f"{name}.json"
    if done.returncode or not file.is_file():
        return {"name": name, "failed": f"exit code {done.returncode}"}
    return json.loads(file.read_text(encoding="utf-8"))


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    asked = options(arguments)
    if asked.child is not None:
        child(asked.child, asked)
        return 0
    import torch

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    result = head("dreambooth", card) | {
        "weights": "random; tiny" if asked.tiny else WEIGHTS,
        "script_sha256": hashlib.sha256(asked.script.read_bytes()).hexdigest(),
        "batch": asked.batch,
        "checkpointing": asked.checkpointing,
        "runs": [],
    }
    with tempfile.TemporaryDirectory() as place:
        work, begun = Path(place), time.perf_counter()
        make_pairs(work / "pairs", 2 * asked.batch, 32 if asked.tiny else 1024, PROMPT)
        files = sorted((work / "pairs").glob("*.jpg"))
        for folder in ("pictures", "captioned/train"):
            (work / folder).mkdir(parents=True)
            for file in files:
                shutil.copy(file, work / folder)
        lines = [json.dumps({"file_name": file.name, "text": PROMPT}) for file in files]
        (work / "captioned/train/metadata.jsonl").write_text("\n".join(lines), encoding="utf-8")
        make_model(work / "model", asked.tiny, asked.text_layers)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        print(f"model and pictures made in {time.perf_counter() - begun:.0f} s", flush=True)
        for name in asked.only:
            run = started(name, arguments, work, asked.limit)
            result["runs"].append(run)
            print(json.dumps({key: value for key, value in run.items() if key != "command"}), flush=True)
            done = {run["name"]: run for run in result["runs"] if "failed" not in run}
            result["times_as_fast"] = {
                f"{mine} / {theirs}": round(done[mine]["images_a_second"] / done[theirs]["images_a_second"], 3)
                for mine in done
                for theirs in done
                if mine.startswith("ours") and theirs.startswith("example")
                if mine.endswith("-cached") == theirs.endswith("-cached")
            }
            if asked.write is not None:
                print(f"wrote {keep(asked.write, result)}", flush=True)
    print(json.dumps(result["times_as_fast"]))
    return any("failed" in run for run in result["runs"])


if __name__ == "__main__":
    sys.exit(main())
