"""One step of every sana-video preset at full size on one GPU: SANA-Video 2B, 480 x 832, random weights.

    python benchmarks/sana_video_full_size.py [--only NAME ...] [--limit SECONDS] [--write [FOLDER]]

sft-lora: LoRA fine-tuning of one clip of 41 frames; sft: full fine-tuning of one; sft-lora-81: LoRA fine-tuning of one
clip of 81 frames; nft: DiffusionNFT on --samples clips of 41 frames of one prompt, with the preset's 10 solver steps
of which 9 are trained; flowgrpo: Flow-GRPO on as many, with the preset's 20 steps and guidance, of which 2 are trained.

Speed and memory do not depend on the weights' values, so the model is made on the card, in this process, once for all
steps: transformer and autoencoder of the shapes of Efficient-Large-Model/SANA-Video_2B_480p_diffusers (the defaults of
diffusers' classes), and the embedded models' tokenizer. The text encoder is a stand-in: Gemma 2's width, --text-layers
layers instead of 26 and a small vocabulary. A prompt is encoded once, so it adds little time either way; the 26 layers
would add 5 GB. Clips are noise, and the reward of nft and flowgrpo is the contrast of a clip's first frame. Batches are
smaller than the presets' (printed), everything else is the presets'; --set changes keys of all of them.

A preset that takes longer than --limit is broken off, and what was seen of it is kept. The JSON is written again after
every preset. --tiny takes a model of a few thousand parameters and small clips, to try all of this on a CPU.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from stages import free, half_precision, head, keep, measured

RESULTS = Path(__file__).parent / "results"
FRAMES = {"sft-lora": 41, "sft": 41, "sft-lora-81": 81, "nft": 41, "flowgrpo": 41}
TINY_FRAMES = {"sft-lora": 5, "sft": 5, "sft-lora-81": 9, "nft": 5, "flowgrpo": 5}


class Clips:
    """Noise of the frames and size that a configuration asks for."""

    def __init__(self, config):
        self.shape = (config.item_frames, 3, *config.policy.diffusers.inference_size)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        import torch

        media = torch.rand(self.shape, generator=torch.Generator().manual_seed(index))
        return {"prompt": f"clip number {index} of a quiet harbour at dusk", "media": media}


def get_dataset(config):
    """Clips for SFT; the same prompts for reinforcement learning."""
    if not config.is_rl:
        return Clips(config)
    return [{"prompt": f"clip number {i} of a quiet harbour at dusk"} for i in range(64)]


def contrast(media, _prompts, _metadata):
    """A stand-in for a reward model: the deviation of the first frame's pixels, (B,)."""
    return media[:, 0].flatten(1).float().std(dim=1)


class Timed:
    """A FlowModel that adds up the seconds of each of its calls, and waits for the device around them."""

    def __init__(self, model, seconds: dict[str, float], wait):
        self._model, self._seconds, self._wait = model, seconds, wait

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._model, name)
        if name not in ("encode_prompts", "encode_media", "decode", "velocity"):
            return value

        def call(*args, **named):
            import torch

            label = name if name != "velocity" else f"velocity_{'with' if torch.is_grad_enabled() else 'no'}_grad"
            self._wait()
            started = time.perf_counter()
            try:
                return value(*args, **named)
            finally:
                self._wait()
                self._seconds[label] = self._seconds.get(label, 0.0) + time.perf_counter() - started

        return call


def published(device, text_layers: int):
    """SANA-Video 2B with random bf16 weights, made on the device."""
    import torch
    from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, SanaVideoPipeline
    from transformers import Gemma2Config, Gemma2Model

    from sanarl.models.tiny import build_tokenizer

    tokenizer = build_tokenizer()
    layers = {"num_hidden_layers": text_layers, "vocab_size": len(tokenizer)}
    with torch.device(device), half_precision():
        vae = AutoencoderKLWan()  # the class's defaults are Wan 2.1's
        text_encoder = Gemma2Model(Gemma2Config(bos_token_id=2, eos_token_id=1, pad_token_id=0, **layers))
        transformer = transformer_2b()
    return SanaVideoPipeline(
        tokenizer=tokenizer,
        text_encoder=text_encoder.eval(),
        vae=vae.eval(),
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=8.0),
    )


def transformer_2b():
    from diffusers import SanaVideoTransformer3DModel

    return SanaVideoTransformer3DModel()  # the class's defaults are SANA-Video 2B's


class Bench:
    """The model, made once, and the steps taken with it."""

    def __init__(self, asked: argparse.Namespace):
        import torch

        import sanarl.training.run  # noqa: F401  # seconds that belong to no step

        self.asked = asked
        self.seconds: dict[str, float] = {}
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        started = time.perf_counter()
        if asked.tiny:
            from sanarl.models.tiny import random_video_pipeline

            self.pipeline = random_video_pipeline()
        else:
            self.pipeline = published(self.device, asked.text_layers)
        self.wait()
        self.seconds_to_make = time.perf_counter() - started
        self.parameters = {
            name: sum(p.numel() for p in part.parameters())
            for name, part in self.pipeline.components.items()
            if hasattr(part, "parameters")
        }

    def wait(self) -> None:
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def load(self, settings, device):
        """The model as a configuration asks for it; its parts are the ones at hand."""
        import torch

        from sanarl.models.load import wrapped

        if not self.asked.tiny:
            for part in (self.pipeline.vae, self.pipeline.text_encoder):
                torch.nn.Module.to(part, settings.other_dtype)
        return Timed(wrapped(self.pipeline, settings, device), self.seconds, self.wait)

    def fresh_transformer(self) -> None:
        """A transformer without adapter or training; the old one is gone before the new one is made."""
        import torch

        if self.asked.tiny:
            from sanarl.models.tiny import random_video_pipeline

            self.pipeline.register_modules(transformer=random_video_pipeline().transformer)
            return
        self.pipeline.register_modules(transformer=None)
        free()
        with torch.device(self.device), half_precision():
            self.pipeline.register_modules(transformer=transformer_2b())

    def overrides(self, name: str) -> list[str]:
        tiny, rl = self.asked.tiny, name in ("nft", "flowgrpo")
        frames = (TINY_FRAMES if tiny else FRAMES)[name]
        common = {
            "train.max_num_steps": 1 if rl else self.asked.steps,
            "train.epoch": 1000,
            "train.optm_warmup_steps": 0,
            "validation.enable": False,
            "guards.enable": False,
            "logging.logger": [],
            "policy.parallelism.dp_shard_size": 1,
            "policy.diffusers.offload": False,
            "policy.diffusers.inference_frames": frames,
        }
        if tiny:
            common |= {"policy.diffusers.inference_size": [32, 32], "policy.diffusers.max_prompt_length": 16}
            common |= {} if name == "sft" else {"policy.lora.r": 4}  # no more than the tiny layers are wide
        if rl:
            common |= {
                "train.train_policy.use_remote_reward": False,
                "train.train_batch_per_replica": self.asked.samples,
                "rollout.n_generation": self.asked.samples,
                "train.train_policy.mini_batch": self.asked.mini_batch,
                "rollout.n_generation_mini_batch": self.asked.mini_batch,
            }
        else:
            common |= {"policy.diffusers.train_frames": frames}
        if name == "flowgrpo":  # two optimiser steps a rollout, as in the preset
            common["train.train_policy.batch_size_per_optimize"] = self.asked.samples // 2
        sets = [f"{key}={json.dumps(value)}" for key, value in common.items()]
        if rl:
            sets.append(f'train.train_policy.reward_function={{ "{Path(__file__).resolve()}:contrast" = 1.0 }}')
        return [*sets, *self.asked.set]

    def step(self, name: str) -> dict[str, Any]:
        """Take the steps of one preset, within the limit; never raises."""
        self.seconds = {}
        sets = self.overrides(name)
        result: dict[str, Any] = {"name": name, "set": sets}

        def measure() -> dict[str, Any]:
            self.fresh_transformer()
            return self._measure(name, sets)

        measured(result, self.asked.limit, measure)
        result["seconds_of_calls"] = {call: round(s, 3) for call, s in self.seconds.items()}
        result |= self.peak()
        free()
        return result

    def _measure(self, name: str, sets: list[str]) -> dict[str, Any]:
        import torch

        from sanarl.config import load
        from sanarl.runtime.world import World
        from sanarl.training import build, run

        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        config = load(f"sana-video-{name.removesuffix('-81')}", sets).config
        with build.parts(config, str(Path(__file__).resolve()), World.start(), self.load) as made:
            lines, _ = run.measured(made, self.asked.steps)
        last = lines[-1]
        return {
            "samples_a_step": config.samples_per_step,
            "frames": config.sample_frames,
            "height, width": list(config.policy.diffusers.inference_size),
            "steps": len(lines),
            "loss": last["loss"],
            "grad_norm": last["grad_norm"],
            "finite": all(math.isfinite(x["loss"]) and math.isfinite(x["grad_norm"]) for x in lines),
            "skipped_steps": last["skipped_steps"],
            **{key: last[key] for key in ("ratio_error", "recomputed_log_probs") if key in last},
            "first_step": {key: round(value, 3) for key, value in lines[0].items() if key.startswith("time/")},
            "last_step": {key: round(value, 3) for key, value in last.items() if key.startswith("time/")},
        } | (
            {"peak_gib_of_steps": [round(x["memory/peak_gib"], 2) for x in lines]} if "memory/peak_gib" in last else {}
        )

    def peak(self) -> dict[str, float]:
        import torch

        if self.device.type != "cuda":
            return {}
        return {"peak_gib_since_last_step": round(torch.cuda.max_memory_allocated() / 2**30, 2)}


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(FRAMES), default=list(FRAMES))
    parser.add_argument("--steps", type=int, default=2, help="of fine-tuning; the first warms up")
    parser.add_argument("--samples", type=int, default=2, help="clips of the prompt of nft and flowgrpo; even")
    parser.add_argument("--mini-batch", type=int, default=2, help="clips at once in nft and flowgrpo")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that a preset may take")
    parser.add_argument("--text-layers", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS)
    return parser.parse_args(arguments)


def write(bench: Bench, runs: list[dict[str, Any]], folder: Path, card: str) -> Path:
    result = head("sana_video_full_size", card) | {
        "weights": "random; tiny" if bench.asked.tiny else "random, shapes of SANA-Video_2B_480p",
        "text_encoder": "tiny" if bench.asked.tiny else f"stand-in: Gemma 2's width, {bench.asked.text_layers} layers",
        "parameters": bench.parameters,
        "seconds_to_make_the_model": round(bench.seconds_to_make, 2),
        "runs": runs,
    }
    return keep(folder, result)


def main(arguments: list[str] | None = None) -> int:
    asked = options(arguments)
    import torch

    started = time.perf_counter()
    bench = Bench(asked)
    card = torch.cuda.get_device_name() if bench.device.type == "cuda" else "cpu"
    print(f"model made on {card} in {bench.seconds_to_make:.1f} s: {bench.parameters}", flush=True)
    runs: list[dict[str, Any]] = []
    for name in asked.only:
        runs.append(bench.step(name))
        print(json.dumps({k: v for k, v in runs[-1].items() if k != "set"}), flush=True)
        if asked.write is not None:
            print(
                f"wrote {write(bench, runs, asked.write, card)}, {time.perf_counter() - started:.0f} s in", flush=True
            )
    return any("failed" in run or not run["finite"] for run in runs)


if __name__ == "__main__":
    sys.exit(main())
