"""What a step of training costs at full size on one GPU or several: SANA-1.5 1.6B, 1024 px, and SANA-Video 2B.

    python benchmarks/train.py [--only NAME ...] [--limit SECONDS] [--write [FOLDER]]
    torchrun --nproc-per-node 2 benchmarks/train.py --only ranks-sft-lora ranks-nft ranks-sft --compare ONE_GPU.json

nft-baseline, nft-as-written, nft: DiffusionNFT on --samples pictures of which --fraction of the timesteps are trained:
eager with activation checkpointing and mini-batches of 9; with the preset's own numbers; with compiled blocks for
training and rollout, no checkpointing and mini-batches of 24. sft-lora-baseline, sft-lora, sft-baseline, sft: eager,
checkpointed and uncached against compiled with cached latents and embeddings. video-...: one clip of 41 frames of
480 x 832, eager and compiled. ranks-...: few steps that are the same on any number of ranks; --compare prints how far
losses are from those of another run's JSON, and the speed of each rank against it. resume: under train.deterministic
steps 1 to 4 without a break, and broken off after step 2; the values must be equal bit by bit.

Speed and memory do not depend on the weights' values, so models are made on the card, in this process, once: random
weights of the published shapes, a stand-in for the text encoder (Gemma 2's width, --text-layers layers). The reward
``constant_time`` is no reward: it sleeps --reward-seconds a batch and returns the pixels' deviation. A figure is the
median of the steps after the first, which warms up and compiles. A variant that takes longer than --limit is broken
off; the JSON is written again after each. --tiny tries all of it on a CPU with a model of a few thousand parameters.
"""

import argparse
import contextlib
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import sana_video_full_size as video
from stages import free, half_precision, head, keep, measured

RESULTS = Path(__file__).parent / "results"
NFT_TARGETS = {"inner_step": (0.42, 0.36), "whole_step": (0.44, 0.36)}  # must, goal: shares of the baseline's time
EAGER: dict[str, Any] = {"train.compile": False, "policy.model_gradient_checkpointing": True}
FAST: dict[str, Any] = {"train.compile": True, "policy.model_gradient_checkpointing": False}
COMPILED_ROLLOUT = {"rollout.engine.mode": "compile"}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "nft-baseline": ("sana-image-nft", EAGER | {"train.train_policy.mini_batch": 9}),
    "nft-as-written": ("sana-image-nft", {}),
    "nft": ("sana-image-nft", FAST | COMPILED_ROLLOUT | {"train.train_policy.mini_batch": 24}),
    "sft-lora-baseline": ("sana-image-sft-lora", EAGER),
    "sft-lora": ("sana-image-sft-lora", FAST | {"data.cache": "CACHE"}),
    "sft-baseline": ("sana-image-sft", EAGER),
    "sft": ("sana-image-sft", FAST | {"data.cache": "CACHE"}),
    "video-sft-lora-baseline": ("sana-video-sft-lora", EAGER),
    "video-sft-lora": ("sana-video-sft-lora", FAST),
    "video-nft-baseline": ("sana-video-nft", EAGER),
    "video-nft": ("sana-video-nft", FAST),
    "ranks-sft-lora": ("sana-image-sft-lora", EAGER),
    "ranks-nft": ("sana-image-nft", EAGER | {"train.train_policy.mini_batch": 4}),
    "ranks-sft": ("sana-image-sft", EAGER | {"policy.parallelism.dp_shard_size": 2}),
    "resume": ("sana-image-sft-lora", EAGER | {"train.deterministic": True}),
}
SMALL = {"ranks-nft": 8, "ranks-sft-lora": 8, "ranks-sft": 8, "resume": 2, "video-nft": 2, "video-nft-baseline": 2}


def get_dataset(config):
    """Noise for SFT, the same every time; prompts for reinforcement learning."""
    return (
        video.Clips(config) if not config.is_rl else [{"prompt": f"number {i} of a quiet harbour"} for i in range(64)]
    )


def constant_time(media, _prompts, _metadata):
    """No reward: it takes a fixed time and tells samples apart."""
    time.sleep(float(os.environ.get("REWARD_SECONDS", "0")))
    return media[:, 0].flatten(1).float().std(dim=1)


def pictures(device, text_layers: int):
    """SANA-1.5 1.6B with random bf16 weights, made on the device."""
    import torch
    from diffusers import AutoencoderDC, FlowMatchEulerDiscreteScheduler, SanaPipeline
    from transformers import Gemma2Config, Gemma2Model

    from sanarl.models.tiny import build_tokenizer

    tokenizer = build_tokenizer()
    layers = {"num_hidden_layers": text_layers, "vocab_size": len(tokenizer)}
    sides = {
        f"{side}_{key}": value
        for side, depths in (("encoder", (2, 2, 2, 3, 3, 3)), ("decoder", (3, 3, 3, 3, 3, 3)))
        for key, value in {
            "block_types": ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
            "block_out_channels": (128, 256, 512, 512, 1024, 1024),
            "layers_per_block": depths,
            "qkv_multiscales": ((), (), (), (5,), (5,), (5,)),
        }.items()
    }
    with torch.device(device), half_precision():
        vae = AutoencoderDC(
            in_channels=3,
            latent_channels=32,
            attention_head_dim=32,
            downsample_block_type="conv",
            upsample_block_type="interpolate",
            scaling_factor=0.41407,
            **sides,
        )
        text_encoder = Gemma2Model(Gemma2Config(bos_token_id=2, eos_token_id=1, pad_token_id=0, **layers))
        transformer = transformer_of("image")
    return SanaPipeline(
        tokenizer=tokenizer,
        text_encoder=text_encoder.eval(),
        vae=vae.eval(),
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
    )


def transformer_of(modality: str):
    from diffusers import SanaTransformer2DModel

    if modality == "video":
        return video.transformer_2b()
    return SanaTransformer2DModel(qk_norm="rms_norm_across_heads")  # the class's defaults are SANA-1.5's


class Bench:
    """The models, made when first needed, and what was measured with them."""

    def __init__(self, asked: argparse.Namespace):
        import torch

        import sanarl.training.run  # noqa: F401  # seconds that belong to no step
        from sanarl.runtime.world import World

        self.asked, self.world = asked, World.start()
        self.device = self.world.device
        self.cuda = self.device.type == "cuda"
        self.card = torch.cuda.get_device_name() if self.cuda else "cpu"
        self.pipelines: dict[str, Any] = {}
        self.cache = tempfile.TemporaryDirectory()
        os.environ["REWARD_SECONDS"] = str(asked.reward_seconds)

    def matmul_tflops(self) -> float | None:
        """bf16 products of square matrices on this card."""
        import torch

        if not self.cuda:
            return None
        a = torch.randn(8192, 8192, device=self.device, dtype=torch.bfloat16)
        for count in (5, 30):  # the first warms up
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(count):
                a @ a
            torch.cuda.synchronize()
        return 2 * 8192**3 * 30 / (time.perf_counter() - started) / 1e12

    def pipeline(self, modality: str):
        """The models of a modality with a transformer that nobody has touched."""
        import torch

        from sanarl.models import tiny

        if self.asked.tiny:
            return tiny.random_video_pipeline() if modality == "video" else tiny.random_pipeline()
        if modality not in self.pipelines:
            self.pipelines.clear()  # one of them at a time
            free()
            made = video.published if modality == "video" else pictures
            self.pipelines[modality] = made(self.device, self.asked.text_layers)
            return self.pipelines[modality]
        found = self.pipelines[modality]
        found.register_modules(transformer=None)
        free()
        with torch.device(self.device), half_precision():
            found.register_modules(transformer=transformer_of(modality))
        return found

    def load(self, settings, device):
        """The model as a configuration asks for it, from parts at hand; the same weights on every rank."""
        import torch

        from sanarl.models.load import wrapped

        torch.manual_seed(0)
        pipeline = self.pipeline(settings.modality)
        if not self.asked.tiny:
            for part in (pipeline.vae, pipeline.text_encoder):
                torch.nn.Module.to(part, settings.other_dtype)
        return wrapped(pipeline, settings, device)

    def overrides(self, name: str) -> list[str]:
        preset, own = VARIANTS[name]
        asked, rl, clips = self.asked, preset.endswith("nft"), "video" in preset
        samples = SMALL.get(name, asked.samples if rl else asked.batch)
        if clips and not rl:
            samples = 1
        shards = own.get("policy.parallelism.dp_shard_size", 1)
        keys = {
            "train.max_num_steps": asked.steps,
            "train.epoch": 1000,
            "train.optm_warmup_steps": 0,
            "validation.enable": False,
            "guards.enable": False,
            "logging.logger": [],
            "policy.parallelism.dp_shard_size": 1,
            "policy.parallelism.dp_replicate_size": 1,
            "policy.diffusers.offload": False,
            "train.ckpt.enable_checkpoint": False,
            "train.train_batch_per_replica": samples // shards,
        }
        if rl:
            keys |= {
                "train.train_policy.use_remote_reward": False,
                "rollout.n_generation": min(samples, 24),
                "rollout.n_generation_mini_batch": min(samples, 24),
                "train.train_policy.batch_size_per_optimize": samples,
                "policy.diffusers.timesteps_fraction": asked.fraction,
            }
        elif not clips:
            keys["train.train_policy.mini_batch"] = min(8, samples // shards)
        if asked.tiny:
            keys |= {"policy.diffusers.inference_size": [32, 32], "policy.diffusers.max_prompt_length": 16}
            keys |= {"policy.diffusers.inference_frames": 5} if clips else {}
            keys |= {"policy.diffusers.train_frames": 5} if clips and not rl else {}
            keys |= {"policy.lora.r": 4} if preset != "sana-image-sft" else {}
        keys |= {key: str(Path(self.cache.name, name)) if value == "CACHE" else value for key, value in own.items()}
        sets = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
        if rl:
            sets.append(f'train.train_policy.reward_function={{ "{Path(__file__).resolve()}:constant_time" = 1.0 }}')
        return [*sets, *asked.set]

    def measure(self, name: str) -> dict[str, Any]:
        """One variant, within the limit; never raises."""
        result: dict[str, Any] = {"name": name, "preset": VARIANTS[name][0], "ranks": self.world.size}

        def measure() -> dict[str, Any]:
            result["set"] = self.overrides(name)
            return self._resumed(result["set"]) if name == "resume" else self._steps(result)

        measured(result, self.asked.limit, measure)
        free()
        return result

    def _steps(self, result: dict[str, Any]) -> dict[str, Any]:
        import torch

        from sanarl.config import load
        from sanarl.training import build, run, settings

        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        config = load(result["preset"], result["set"]).config
        with build.parts(config, str(Path(__file__).resolve()), self.world, self.load) as made:
            lines, _ = run.measured(made, self.asked.steps)
            timesteps = 1
            if config.is_rl:
                shift = made.model.flow_shift
                trained = (
                    settings.rl_setup(config, shift).sampler.num_steps * config.policy.diffusers.timesteps_fraction
                )
                timesteps = max(1, int(trained + 1e-9))
        if not lines:  # not the main rank
            return {}
        timed = lines[1:] or lines
        seconds = {
            key: statistics.median(line[key] for line in timed)
            for key in timed[0]
            if key.startswith(("time/", "perf/"))
        }
        samples = config.samples_per_step
        found = {
            "samples_a_step": samples,
            "timesteps": timesteps,
            "losses": [line["loss"] for line in lines],
            "grad_norms": [line["grad_norm"] for line in lines],
            "medians": {key: round(value, 4) for key, value in seconds.items()},
            "first_step_s": round(lines[0]["time/step"], 2),
            "ms_a_sample": round(1e3 * seconds["time/step"] / samples, 2),
            "ms_trained_a_sample_and_timestep": round(1e3 * seconds["time/train"] / samples / timesteps, 3),
        }
        if self.cuda:
            found["peak_gib"] = round(max(line.get("memory/peak_gib", 0.0) for line in lines), 2)
        return found

    def _resumed(self, sets: list[str]) -> dict[str, Any]:
        """Whether four steps with a break after the second end with the bits of four without."""
        import torch

        from sanarl.config import load
        from sanarl.runtime import checkpoint
        from sanarl.training import build, run

        ends: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory() as place:
            for folder, resume in (("whole", "never"), ("broken", "never"), ("broken", "step_2")):
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
                real = build.load_model
                build.parts.__defaults__ = (self.load,)
                try:
                    found = run.run(config, str(Path(__file__).resolve()), resume)
                finally:
                    build.parts.__defaults__ = (real,)
                saved = checkpoint.read(found.folder / "checkpoints" / "step_4", config.config.identity())
                ends.append(saved["policy"]["sets"]["learner"])
                free()
        differ = [name for name, value in ends[0].items() if not torch.equal(value, ends[2][name])]
        return {"equal_bit_by_bit": not differ, "values": len(ends[0]), "different": len(differ)}


def ratios(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Every variant's time as a share of its baseline's."""
    done = {run["name"]: run for run in runs if "medians" in run}
    found: dict[str, Any] = {}
    for name, run in done.items():
        base = done.get(f"{name.removesuffix('-as-written')}-baseline")
        if base is None:
            continue
        shares = {
            "inner_step": run["ms_trained_a_sample_and_timestep"] / base["ms_trained_a_sample_and_timestep"],
            "whole_step": whole_step(run) / whole_step(base),
        }
        found[name] = {key: round(value, 3) for key, value in shares.items()}
        if name == "nft":
            found["nft_holds"] = {key: shares[key] <= must for key, (must, _) in NFT_TARGETS.items()}
    return found


def whole_step(run: dict[str, Any], timesteps: int = 10) -> float:
    """Milliseconds of a sample's whole step with all timesteps trained: what was trained is scaled up."""
    outside = run["ms_a_sample"] - run["ms_trained_a_sample_and_timestep"] * run["timesteps"]
    scale = timesteps if "nft" in run["name"] else run["timesteps"]
    return outside + run["ms_trained_a_sample_and_timestep"] * scale


def compared(runs: list[dict[str, Any]], file: Path) -> dict[str, Any]:
    """How far the losses of each run are from those of the same run in ``file``, and how much faster it is a rank."""
    before = {run["name"]: run for run in json.loads(file.read_text(encoding="utf-8"))["runs"] if "losses" in run}
    found = {}
    for run in runs:
        if "losses" in run and (one := before.get(run["name"])) is not None:
            far = max(abs(a - b) / abs(b) for a, b in zip(run["losses"], one["losses"], strict=True))
            speed = one["medians"]["time/step"] / run["medians"]["time/step"]
            found[run["name"]] = {
                "largest_relative_difference_of_losses": far,
                "times_as_fast": round(speed, 3),
                "efficiency": round(speed * one["ranks"] / run["ranks"], 3),
            }
    return found


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
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    asked = options(arguments)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # train.deterministic needs it
    started, bench = time.perf_counter(), Bench(asked)
    start = head("train", bench.card) | {
        "ranks": bench.world.size,
        "weights": "random; tiny" if asked.tiny else "random, shapes of SANA1.5_1.6B_1024px and SANA-Video_2B_480p",
        "matmul_tflops": bench.matmul_tflops(),
    }
    runs: list[dict[str, Any]] = []
    for name in asked.only:
        runs.append(bench.measure(name))
        if not bench.world.main:
            continue
        result = start | {"runs": runs, "shares_of_the_baseline": ratios(runs)}
        if asked.compare is not None:
            result["compared"] = compared(runs, asked.compare)
        print(json.dumps({k: v for k, v in runs[-1].items() if k != "set"}), flush=True)
        if asked.write is not None:
            ranks = f"_{bench.world.size}_ranks" if bench.world.size > 1 else ""
            path = keep(asked.write, result, ranks)
            print(f"wrote {path}, {time.perf_counter() - started:.0f} s in", flush=True)
    if bench.world.main:
        print(
            json.dumps({key: result[key] for key in ("shares_of_the_baseline", "compared") if key in result}, indent=1)
        )
    with contextlib.suppress(OSError):
        bench.cache.cleanup()
    gc.collect()
    bench.world.stop()
    return any("failed" in run or run.get("equal_bit_by_bit") is False for run in runs)


if __name__ == "__main__":
    sys.exit(main())
