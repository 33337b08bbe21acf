"""The sana-image presets at full size on one GPU: SANA-1.5 1.6B, 1024 x 1024, bf16, random weights.

    python benchmarks/sana_full_size.py --work DIR [--steps 3] [--only NAME ...] [--write]

Speed and memory do not depend on the weights' values, so the model is made here: the shapes of
Efficient-Large-Model/SANA1.5_1.6B_1024px_diffusers (transformer, DC-AE f32c32, Gemma 2 2B) with random weights, and the
embedded model's tokenizer. The reward of nft and flowgrpo is a stand-in (contrast of the picture); it has to differ
within a group. Batches are smaller than the presets' (printed), everything else is the presets'.
"""

import argparse
import datetime
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
STAND_IN = '''
def contrast(media, prompts, metadata):
    """A stand-in for a reward model: the deviation of a picture's pixels, (B,)."""
    return media.flatten(1).float().std(dim=1)
'''
TASKS = ("sft-lora", "sft", "nft", "flowgrpo")
PROMPTS = [f"picture number {i} of a quiet harbour at dusk" for i in range(64)]


def make_model(folder: Path) -> None:
    import torch
    from diffusers import AutoencoderDC, DPMSolverMultistepScheduler, SanaPipeline, SanaTransformer2DModel
    from transformers import Gemma2Config, Gemma2Model

    from sanarl.models.tiny import build_tokenizer

    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    with torch.device("cuda"):
        transformer = SanaTransformer2DModel(qk_norm="rms_norm_across_heads")  # the class's defaults are SANA-1.5's
        vae = AutoencoderDC(
            in_channels=3,
            latent_channels=32,
            attention_head_dim=32,
            encoder_block_types=("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
            decoder_block_types=("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
            encoder_block_out_channels=(128, 256, 512, 512, 1024, 1024),
            decoder_block_out_channels=(128, 256, 512, 512, 1024, 1024),
            encoder_layers_per_block=(2, 2, 2, 3, 3, 3),
            decoder_layers_per_block=(3, 3, 3, 3, 3, 3),
            encoder_qkv_multiscales=((), (), (), (5,), (5,), (5,)),
            decoder_qkv_multiscales=((), (), (), (5,), (5,), (5,)),
            downsample_block_type="conv",
            upsample_block_type="interpolate",
            scaling_factor=0.41407,
        )
        text_encoder = Gemma2Model(Gemma2Config(bos_token_id=2, eos_token_id=1, pad_token_id=0))  # defaults: 2B's
    pipeline = SanaPipeline(
        tokenizer=tokenizer,
        text_encoder=text_encoder.bfloat16(),
        vae=vae.bfloat16(),
        transformer=transformer.bfloat16(),
        scheduler=DPMSolverMultistepScheduler(flow_shift=3.0, use_flow_sigmas=True, prediction_type="flow_prediction"),
    )
    pipeline.save_pretrained(folder)
    count = {
        name: sum(p.numel() for p in part.parameters())
        for name, part in pipeline.components.items()
        if hasattr(part, "parameters")
    }
    print("parameters", {name: f"{n / 1e9:.2f} B" for name, n in count.items()}, flush=True)
    del pipeline, transformer, vae, text_encoder
    torch.cuda.empty_cache()


def make_data(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    for name in ("pairs", "prompts"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for i, prompt in enumerate(PROMPTS):
        coarse = random.integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((1024, 1024), Image.Resampling.BICUBIC).save(folder / "pairs" / f"{i}.jpg")
        (folder / "pairs" / f"{i}.json").write_text(json.dumps({"prompt": prompt}))
    (folder / "prompts" / "train.txt").write_text("\n".join(PROMPTS))
    (folder / "prompts" / "test.txt").write_text("\n".join(PROMPTS[:8]))
    (folder / "stand_in.py").write_text(STAND_IN)


def overrides(name: str, work: Path, steps: int) -> list[str]:
    common = {
        "policy.model_name_or_path": str(work / "model"),
        "train.output_dir": str(work / "out" / name),
        "train.max_num_steps": steps,
        "train.epoch": 1000,
        "train.ckpt.save_freq": steps,
        "logging.logger": ["console"],
        "validation.enable": False,
        "guards.enable": False,
        "policy.parallelism.dp_shard_size": 1,
    }
    if name.startswith("sana-image-sft"):
        common |= {
            "train.train_policy.dataset.local_dir": str(work / "pairs"),
            "train.train_batch_per_replica": 8,
            "train.train_policy.mini_batch": 4,
        }
    else:
        common |= {
            "train.train_policy.dataset.local_dir": str(work / "prompts"),
            "train.train_policy.dataset.name": "",
            "train.train_policy.use_remote_reward": False,
            "train.train_batch_per_replica": 48,
            "rollout.n_generation_mini_batch": 24,
        }
    sets = [f"{key}={json.dumps(value)}" for key, value in common.items()]
    if name == "sana-image-flowgrpo":
        sets.append("train.train_policy.batch_size_per_optimize=24")  # two optimiser steps a rollout, as in the preset
    if name in ("sana-image-nft", "sana-image-flowgrpo"):
        sets.append(f'train.train_policy.reward_function={{ "{work / "stand_in.py"}:contrast" = 1.0 }}')
    return sets


def one(name: str, work: Path, steps: int, timeout: float) -> dict:
    sets = overrides(name, work, steps)
    command = [sys.executable, "-m", "sanarl", "train", "--config", name]
    started = time.perf_counter()
    done = subprocess.run(command + [p for s in sets for p in ("--set", s)], timeout=timeout, check=False)
    seconds = time.perf_counter() - started
    files = sorted((work / "out" / name).glob("*/metrics.jsonl"))
    lines = [json.loads(line) for line in files[-1].read_text().splitlines()] if files else []
    later = lines[1:] or lines  # the first step warms up
    result = {"preset": name, "exit_code": done.returncode, "seconds_in_all": round(seconds, 1), "set": sets}
    if lines:
        times = {k: round(statistics.median(x[k] for x in later), 3) for k in later[0] if k.startswith("time/")}
        result |= {
            "steps": len(lines),
            "loss": [round(x["loss"], 5) for x in lines],
            "grad_norm": [round(x["grad_norm"], 5) for x in lines],
            "finite": all(math.isfinite(x["loss"]) and math.isfinite(x["grad_norm"]) for x in lines),
            "skipped_steps": lines[-1]["skipped_steps"],
            "peak_gib": max(x.get("memory/peak_gib", 0.0) for x in lines),
            **times,
            **{key: [x[key] for x in lines] for key in ("ratio_error", "recomputed_log_probs") if key in lines[0]},
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[f"sana-image-{task}" for task in TASKS])
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a preset may take")
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS)
    asked = parser.parse_args()
    work = asked.work.resolve()
    if not (work / "model" / "model_index.json").is_file():
        started = time.perf_counter()
        make_model(work / "model")
        make_data(work)
        print(f"model and data made in {time.perf_counter() - started:.0f} s", flush=True)
    import torch

    runs = []
    for name in asked.only:
        try:
            runs.append(one(name, work, asked.steps, asked.timeout))
        except subprocess.TimeoutExpired:
            runs.append({"preset": name, "exit_code": "timed out", "seconds_in_all": asked.timeout})
    today = datetime.date.today().isoformat()
    result = {
        "benchmark": "sana_full_size",
        "date": today,
        "card": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "diffusers", "transformers", "peft")},
        "weights": "random, shapes of SANA1.5_1.6B_1024px",
        "runs": runs,
    }
    for run in runs:
        print(json.dumps({k: v for k, v in run.items() if k != "set"}), flush=True)
    if asked.write is not None:
        card = torch.cuda.get_device_name().replace(" ", "-").lower()
        path = asked.write / f"sana_full_size_{card}_{today}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
