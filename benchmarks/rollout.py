"""Rollouts at full size on one GPU: SANA-1.5 1.6B, 1024 x 1024, random weights, batch 24, LoRA r 32 on all attention.

    python benchmarks/rollout.py [--only STAGE ...] [--limit SECONDS] [--repeat 2] [--write [FOLDER]]

baseline: what peers run, the eager bf16 transformer with its adapter (PEFT) and the autoencoder in float32; 10 steps
and decoding of 24 pictures, and 96 of them (naive_scaling). compile: a bf16 copy with compiled blocks, decoder in bf16,
compiled, channels last; 24 and 96 pictures. fp8: previews of 6 steps by a copy with FP8 linear layers in all blocks,
decoded at half size; 96 previews and 24 full pictures by the compiled copy are a step of sol_rl-fp8.

Everything goes through the package's own sampling (noise by identity, prompts encoded, media on the card, nothing
scored), in one process; ratios are within this run. Stages need the ones before them. Warm-ups, graphs compiled after
them, bytes of copies, peak memory, and how far velocities and decoded pictures are from the baseline's are written as
well. A stage that takes longer than --limit is broken off and the rest goes on without it. --tiny tries all of this on
a CPU with a model of a few thousand parameters and emulated formats: its figures mean nothing.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from stages import free, half_precision, head, keep, measured

RESULTS = Path(__file__).parent / "results"
STAGES = ("baseline", "compile", "fp8")
TARGETS = [f"attn{i}.{name}" for i in (1, 2) for name in ("to_q", "to_k", "to_v", "to_out.0")]
CLAIMS = {
    "full / baseline": (0.48, 0.38),
    "preview / baseline": (0.22, 0.19),
    "sol_rl-fp8 step / compile": (0.75, 0.62),
}
"""Ratio -> (at most, goal)."""


def published(device, text_layers: int):
    """SANA-1.5 1.6B with random bf16 weights, made on the device; a text encoder of Gemma 2's width and few layers."""
    import torch
    from diffusers import AutoencoderDC, FlowMatchEulerDiscreteScheduler, SanaPipeline, SanaTransformer2DModel
    from transformers import Gemma2Config, Gemma2Model

    from sanarl.models.tiny import build_tokenizer

    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    layers = {"num_hidden_layers": text_layers, "vocab_size": len(tokenizer)}
    blocks = ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3
    with torch.device(device), half_precision():
        transformer = SanaTransformer2DModel(qk_norm="rms_norm_across_heads")  # the class's defaults are 1.6B's
        vae = AutoencoderDC(
            in_channels=3,
            latent_channels=32,
            attention_head_dim=32,
            encoder_block_types=blocks,
            decoder_block_types=blocks,
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
        text_encoder = Gemma2Model(Gemma2Config(bos_token_id=2, eos_token_id=1, pad_token_id=0, **layers))
    return SanaPipeline(
        tokenizer=tokenizer,
        text_encoder=text_encoder.eval(),
        vae=vae.eval(),
        transformer=transformer.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
    )


class Bench:
    """The policy, made once, and what samples for it."""

    def __init__(self, asked: argparse.Namespace):
        import torch

        from sanarl.models.adapter import LoraSettings, add_adapter
        from sanarl.models.base import Use
        from sanarl.models.policy import Policy
        from sanarl.models.sana import Sana
        from sanarl.models.tiny import random_pipeline

        self.asked = asked
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        started = time.perf_counter()
        pipeline = random_pipeline() if asked.tiny else published(self.device, asked.text_layers)
        pipeline.set_progress_bar_config(disable=True)
        size = (64, 64) if asked.tiny else (1024, 1024)
        length, rank = (12, 8) if asked.tiny else (300, 32)
        self.model = Sana(pipeline, Use(size, self.device, max_prompt_length=length))
        start = add_adapter(
            self.model.transformer, LoraSettings(r=rank, alpha=2.0 * rank, target_modules=TARGETS), seed=0
        )
        self.policy = Policy(self.model, start, torch.float32, kept_sets=True)
        generator = torch.Generator().manual_seed(0)
        for name, value in zip(self.policy.names, self.policy.sets["old"], strict=True):
            if ".lora_B." in name:  # an adapter that has learned something
                value.copy_(torch.randn(value.shape, generator=generator) * 0.01)
        self.wait()
        self.seconds_to_make = time.perf_counter() - started
        self.times: dict[str, float] = {}
        self.replicas: dict[str, Any] = {}
        self.kept: dict[str, Any] = {}

    def wait(self) -> None:
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize()

    # ---- sampling

    def rollout(self, source, num_steps: int, count: int, scale: float = 1.0):
        """Samples of one prompt as a training step draws them, not scored."""
        import torch

        from sanarl.rollout.collect import Request, collect
        from sanarl.rollout.generate import Sampler

        sampler = Sampler(num_steps, 1.0, "euler", 1.0, self.asked.batch, decode_scale=scale)
        ids = torch.arange(count)
        request = Request(["a quiet harbour at dusk"] * count, [{}] * count, ids, torch.zeros_like(ids))
        with self.policy.old():
            if source is not self.policy:
                source.sync()
            return collect(source, request, sampler, (0, 1), None, 60.0, range(1))

    def timed(self, name: str, *arguments, repeat: int | None = None) -> float:
        """Median seconds of a rollout."""
        seconds = []
        for _ in range(repeat or self.asked.repeat):
            self.wait()
            started = time.perf_counter()
            self.rollout(*arguments)
            self.wait()
            seconds.append(time.perf_counter() - started)
        self.times[name] = statistics.median(seconds)
        print(f"  {name}: {self.times[name]:.3f} s of {[round(s, 3) for s in seconds]}", flush=True)
        return self.times[name]

    def probe(self, source):
        """Velocities of two samples at two noise levels."""
        import torch

        from sanarl.maths import draw

        cond = self.model.encode_prompts(["a quiet harbour at dusk"] * 2)
        x = draw.normal(torch.arange(2), self.model.latent_shape, "probe").to(self.device)
        with self.policy.old(), torch.no_grad():
            if source is not self.policy:
                source.sync()
            return source.velocity(x, torch.tensor([0.9, 0.4], device=self.device), cond).double().cpu()

    def replica(self, mode: str, everything: bool):
        """A copy, warmed up."""
        from sanarl.config.schema.rollout import SKIPPED
        from sanarl.models.quantize import Rule
        from sanarl.models.replicas import Replica, ReplicaSettings

        skipped = tuple(name for name in SKIPPED if name != "attn.qkv")
        tiny = self.asked.tiny
        rule = Rule(skipped, 0) if everything else Rule(SKIPPED, 10_000 if tiny else 2240)
        settings = ReplicaSettings("emulated_fp8" if tiny else mode, rule, "default", self.asked.batch)
        made = Replica(self.policy, settings)
        warm = made.warm_up()
        self.replicas[mode] = made
        return made, {
            "warm_up_seconds": round(warm.seconds, 2),
            "graphs": warm.graphs,
            "synthetic_adapter_error": warm.error,
            "bytes": made.num_bytes,
            "layers": str(made.report),
            "velocity_error": relative(self.probe(made), self.kept["velocity"]) if "velocity" in self.kept else None,
        }

    def warm_decoder(self, scale: float) -> dict[str, Any]:
        """Compile decoding at a size."""
        import torch

        from sanarl.models.replicas import compiled_graphs
        from sanarl.rollout.generate import shrunk

        before, started = compiled_graphs(), time.perf_counter()
        latents = torch.zeros(self.asked.batch, *self.model.latent_shape, device=self.device)
        self.model.decode(shrunk(latents, scale))
        self.wait()
        return {"seconds": round(time.perf_counter() - started, 2), "graphs": compiled_graphs() - before}

    # ---- stages

    def baseline(self) -> dict[str, Any]:
        import torch

        self.model.pipeline.vae.to(torch.float32)
        found = self.rollout(self.policy, 10, self.asked.batch)  # warm
        latents = found.rollout.latents[:2].clone()
        self.kept = {
            "velocity": self.probe(self.policy),
            "latents": latents,
            "pictures": self.model.decode(latents).cpu(),
        }
        self.timed("baseline", self.policy, 10, self.asked.batch)
        self.timed("naive_scaling", self.policy, 10, 4 * self.asked.batch, repeat=1)
        return {}

    def compile(self) -> dict[str, Any]:
        import torch

        self.model.pipeline.vae.to(torch.bfloat16)
        made, said = self.replica("compile", everything=False)
        if not self.asked.tiny:
            self.model.compile_decoder(self.asked.batch)
        said["decoder"] = self.warm_decoder(1.0)
        if "pictures" in self.kept:
            grey = (self.model.decode(self.kept["latents"]).cpu() - self.kept["pictures"]).abs() * 255
            said["decoder"] |= {"mean_grey_levels": float(grey.mean()), "largest_grey_levels": float(grey.max())}
        self.after_warm_up()
        self.timed("full", made, 10, self.asked.batch)
        self.timed("compile", made, 10, 4 * self.asked.batch, repeat=1)
        return said | self.recompiled()

    def fp8(self) -> dict[str, Any]:
        made, said = self.replica("compile_fp8", everything=True)
        said["half_size_decoder"] = self.warm_decoder(0.5)
        self.after_warm_up()
        self.timed("preview", made, 6, self.asked.batch, 0.5)
        previews = self.timed("96 previews", made, 6, 4 * self.asked.batch, 0.5, repeat=1)
        if "compile" in self.replicas:
            full = self.timed("regenerate", self.replicas["compile"], 10, self.asked.batch)
            self.times["sol_rl-fp8"] = previews + full
        return said | self.recompiled()

    def after_warm_up(self) -> None:
        from sanarl.models.replicas import compiled_graphs

        self._counted = compiled_graphs()

    def recompiled(self) -> dict[str, int]:
        from sanarl.models.replicas import compiled_graphs

        return {"recompiled_after_warm_up": compiled_graphs() - self._counted}

    def stage(self, name: str) -> dict[str, Any]:
        """Run a stage within the limit; never raises."""
        import torch

        result: dict[str, Any] = {"name": name}
        cuda = self.device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        measured(result, self.asked.limit, getattr(self, name))
        if cuda:
            result["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        free()
        return result

    def ratios(self) -> dict[str, float]:
        """What the claims are about."""
        found, t = {}, self.times
        for name, (over, under) in {
            "full / baseline": ("full", "baseline"),
            "preview / baseline": ("preview", "baseline"),
            "sol_rl-fp8 step / compile": ("sol_rl-fp8", "compile"),
            "sol_rl-fp8 step / naive_scaling": ("sol_rl-fp8", "naive_scaling"),
        }.items():
            if over in t and under in t:
                found[name] = round(t[over] / t[under], 4)
        return found


def relative(found, expected) -> float:
    return float((found - expected).norm() / expected.norm())


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--repeat", type=int, default=2, help="rollouts that a median is of")
    parser.add_argument("--limit", type=float, default=95.0, help="seconds that a stage may take")
    parser.add_argument("--text-layers", type=int, default=2)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS)
    return parser.parse_args(arguments)


def write(bench: Bench, stages: list[dict[str, Any]], folder: Path, card: str) -> Path:
    result = head("rollout", card) | {
        "weights": "random; tiny" if bench.asked.tiny else "random, shapes of SANA1.5_1.6B_1024px",
        "batch": bench.asked.batch,
        "seconds_to_make_the_model": round(bench.seconds_to_make, 2),
        "seconds": {name: round(s, 4) for name, s in bench.times.items()},
        "ratios": bench.ratios(),
        "claims (at most, goal)": CLAIMS,
        "stages": stages,
    }
    return keep(folder, result)


def main(arguments: list[str] | None = None) -> int:
    asked = options(arguments)
    import torch

    started = time.perf_counter()
    bench = Bench(asked)
    card = torch.cuda.get_device_name() if bench.device.type == "cuda" else "cpu"
    print(f"model made on {card} in {bench.seconds_to_make:.1f} s", flush=True)
    stages: list[dict[str, Any]] = []
    for name in asked.only:
        stages.append(bench.stage(name))
        print(json.dumps(stages[-1]), flush=True)
        if asked.write is not None:
            print(
                f"wrote {write(bench, stages, asked.write, card)}, {time.perf_counter() - started:.0f} s in", flush=True
            )
    for name, ratio in bench.ratios().items():
        most, goal = CLAIMS.get(name, (None, None))
        print(f"{name}: {ratio:.3f}" + (f" (at most {most}, goal {goal})" if most else ""))
    return any("failed" in stage for stage in stages)


if __name__ == "__main__":
    sys.exit(main())
