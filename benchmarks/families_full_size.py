"""One step of SD3.5-M, SD3.5-L and FLUX.1 at full size on one GPU: time, memory, and the ratio of compiled to eager.

    python benchmarks/families_full_size.py [--only NAME ...] [--limit SECONDS] [--write [FOLDER]]

sd3-m-nft: DiffusionNFT at 512 px with the settings of sd3-image-nft; sd3-l-nft: at 1024 px with those of
sd3-image-nft-compile-pickscore; flux1-sft-lora: fine-tuning at 1024 px. Each as NAME-baseline (eager, activation
checkpointing, rollouts by the model that trains) and as NAME (blocks compiled, no checkpointing; SD3.5-M samples by a
compiled bf16 copy, SD3.5-L, to compile less, by the model that trains). Few samples, --fraction of NFT's timesteps.

Speed and memory do not depend on the weights' values, so models are made on the card, in this process: bf16, random
weights of the published shapes; text encoders have the published widths and --text-layers layers, and tokenizers spell
letter by letter. A figure is that of the last of --steps steps; the first warms up and compiles. A stage that takes
longer than --limit is broken off; the JSON is written again after each. --tiny tries all of it on a CPU.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from full_size import Bench, overrides
from stages import half_precision, head, keep

RESULTS = Path(__file__).parent / "results"
EAGER: dict[str, Any] = {
    "train.compile": False,
    "train.fuse": False,
    "policy.model_gradient_checkpointing": True,
    "rollout.engine.mode": "peft",
    "rollout.engine.decode_compile": False,
}
FAST: dict[str, Any] = {"train.compile": True, "policy.model_gradient_checkpointing": False}
SFT_EAGER = {key: value for key, value in EAGER.items() if not key.startswith("rollout.")}
ONE_MODEL = {"rollout.engine.mode": "peft", "rollout.engine.decode_compile": False}
ROLLOUT = {"rollout.engine.mode": "compile", "rollout.engine.decode_compile": False}

NFT_L = "sd3-image-nft-compile-pickscore"
MINI_BATCH = "train.train_policy.mini_batch"
STAGES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sd3-m-nft-baseline": ("sd3-m", "sd3-image-nft", EAGER | {MINI_BATCH: 9}),
    "sd3-m-nft": ("sd3-m", "sd3-image-nft", FAST | ROLLOUT | {MINI_BATCH: 24}),
    "sd3-l-nft-baseline": ("sd3-l", NFT_L, EAGER | {MINI_BATCH: 4}),
    "sd3-l-nft": ("sd3-l", NFT_L, FAST | ONE_MODEL | {MINI_BATCH: 4}),
    "flux1-sft-lora-baseline": ("flux1", "flux1-image-sft-lora", SFT_EAGER),
    "flux1-sft-lora": ("flux1", "flux1-image-sft-lora", FAST | {MINI_BATCH: 2}),
}
"""Stage -> model, preset, keys."""
SAMPLES = {"sd3-m": 24, "sd3-l": 4, "flux1": 2}
"""Of a step."""
SD3: dict[str, dict[str, Any]] = {
    "sd3-m": {
        "num_layers": 24,
        "num_attention_heads": 24,
        "caption_projection_dim": 1536,
        "pos_embed_max_size": 384,
        "dual_attention_layers": tuple(range(13)),
    },
    "sd3-l": {
        "num_layers": 38,
        "num_attention_heads": 38,
        "caption_projection_dim": 2432,
        "pos_embed_max_size": 192,
    },
}
"""Where the published transformers differ from the class's defaults, beside query-key norms."""


def autoencoder(scale: float, shift: float):
    """That of SD3.5 and of FLUX.1, which differ in scale and shift."""
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(128, 256, 512, 512),
        layers_per_block=2,
        latent_channels=16,
        scaling_factor=scale,
        shift_factor=shift,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def transformer_of(model: str):
    """A transformer of the published shape."""
    from diffusers import FluxTransformer2DModel, SD3Transformer2DModel

    if model == "flux1":
        return FluxTransformer2DModel(guidance_embeds=True)  # the class's defaults are FLUX.1's
    return SD3Transformer2DModel(qk_norm="rms_norm", **SD3[model])


def made(model: str, device: Any, text_layers: int):
    """A pipeline of the published shapes, made on the device."""
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, StableDiffusion3Pipeline
    from transformers import CLIPTextModel, CLIPTextModelWithProjection, T5EncoderModel

    from sanarl.models.tiny_joint import clip_config, clip_tokenizer, t5_config, t5_tokenizer

    clip, t5 = clip_tokenizer(), t5_tokenizer()
    large, giant = (clip_config(clip, width, text_layers, width // 64) for width in (768, 1280))
    with torch.device(device), half_precision():
        t5_encoder = T5EncoderModel(t5_config(t5, 4096, text_layers, 64, 10240)).eval()
        parts: dict[str, Any] = {"transformer": transformer_of(model), "tokenizer": clip}
        if model == "flux1":
            parts |= {"text_encoder": CLIPTextModel(large).eval(), "vae": autoencoder(0.3611, 0.1159)}
            scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True)
            return FluxPipeline(text_encoder_2=t5_encoder, tokenizer_2=t5, scheduler=scheduler, **parts)
        first, second = (CLIPTextModelWithProjection(config).eval() for config in (large, giant))
        parts |= {"text_encoder": first, "text_encoder_2": second, "vae": autoencoder(1.5305, 0.0609)}
        return StableDiffusion3Pipeline(
            text_encoder_3=t5_encoder,
            tokenizer_2=clip,
            tokenizer_3=t5,
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
            **parts,
        )


class Families(Bench):
    """This process, and the model of the present stage, made anew for each."""

    model = ""

    def load(self, settings, device):
        """The model as a configuration asks for it."""
        import torch

        from sanarl.models import tiny_joint
        from sanarl.models.load import wrapped

        torch.manual_seed(0)
        if self.tiny:
            pipeline = (tiny_joint.random_flux_pipeline if self.model == "flux1" else tiny_joint.random_sd3_pipeline)()
        else:
            pipeline = made(self.model, self.device, self.text_layers)
        return wrapped(pipeline, settings, device)

    def stage(self, name: str, asked: argparse.Namespace) -> dict[str, Any]:
        """One stage, within the limit; never raises."""
        self.model, preset, own = STAGES[name]
        keys = {"policy.diffusers.dtype": "bfloat16"} | own
        if "nft" in name:
            keys |= {"policy.diffusers.timesteps_fraction": asked.fraction, "rollout.n_candidates": SAMPLES[self.model]}
        sets = [*overrides(preset, keys, SAMPLES[self.model], asked.steps, asked.tiny), *asked.set]
        return {"model": self.model} | self.measure(name, preset, sets, asked.limit)

    def probe(self, name: str, asked: argparse.Namespace) -> dict[str, Any]:
        """Sizes of values through one training pass in eager mode, place by place; null where one is not finite."""
        import torch

        from sanarl.config import load
        from sanarl.training.modelling import build_policy, model_settings

        self.model, preset, own = STAGES[name]
        keys = {"policy.diffusers.dtype": "bfloat16", "train.compile": False} | own
        config = load(preset, overrides(preset, keys, SAMPLES[self.model], 1, asked.tiny)).config
        model = self.load(model_settings(config), self.device)
        policy, found = build_policy(config, model), {}

        def saw(place: str, value: Any) -> None:
            for number, tensor in enumerate(value if isinstance(value, tuple) else [value]):
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                    size = tensor.detach().float().square().mean().sqrt().item()
                    found[f"{place}:{number}"] = round(size, 4) if size == size and size != float("inf") else None

        for place, block in model.transformer.named_modules():
            if place.count(".") < 2 and place:
                block.register_forward_hook(lambda _, __, out, place=place: saw(place, out))
        media = torch.rand(1, 1, 3, *config.policy.diffusers.inference_size)
        x0, cond = model.encode_media(media, 1), model.encode_prompts(["a quiet harbour"])
        saw("latents", x0)
        saw("embeddings", (cond.embeds, cond.pooled))
        sigma = torch.full((1,), 0.5, device=self.device)
        v = policy.velocity(x0 / 2 + torch.randn_like(x0) / 2, sigma, cond)
        saw("velocity", v)
        v.square().mean().backward()
        for place, p in model.transformer.named_parameters():
            if p.grad is not None:
                saw(f"gradient of {place}", p.grad)
        wrong = [place for place, size in found.items() if size is None]
        return {
            "name": name,
            "places": len(found),
            "first_not_finite": wrong[:5],
            "last": dict(list(found.items())[-3:]),
        }


def ratios(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Every stage's time as a share of its baseline's: a trained timestep, and the step with its rollout."""
    done = {run["name"]: run for run in runs if "medians" in run}
    found = {}
    for name, run in done.items():
        if (base := done.get(f"{name}-baseline")) is None:
            continue
        keys = {"inner_step": "ms_trained_a_sample_and_timestep", "step": "ms_a_sample"}
        found[name] = {share: round(run[key] / base[key], 3) for share, key in keys.items()}
        if "time/rollout" in run["medians"]:
            found[name]["rollout"] = round(run["medians"]["time/rollout"] / base["medians"]["time/rollout"], 3)
    return found


def options(arguments: list[str] | None) -> argparse.Namespace:
    """What is asked for on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(STAGES), default=list(STAGES))
    parser.add_argument("--steps", type=int, default=2, help="the first warms up and compiles")
    parser.add_argument("--fraction", type=float, default=0.1, help="of the timesteps that are trained")
    parser.add_argument("--reward-seconds", type=float, default=0.0)
    parser.add_argument("--limit", type=float, default=100.0, help="seconds that a stage may take")
    parser.add_argument("--text-layers", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--probe", action="store_true", help="only say where values stop being finite, in eager mode")
    parser.add_argument("--no-cudnn-attention", action="store_true", help="leave attention to torch's other kernels")
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Every stage; 1 when one failed."""
    asked = options(arguments)
    started = time.perf_counter()
    bench = Families(asked.tiny, asked.text_layers, asked.reward_seconds)
    if asked.no_cudnn_attention:
        import torch

        torch.backends.cuda.enable_cudnn_sdp(False)
    if asked.probe:
        for name in asked.only:
            print(json.dumps(bench.probe(name, asked)), flush=True)
        return 0
    start = head("families_full_size", bench.card) | {
        "cudnn_attention": not asked.no_cudnn_attention,
        "weights": "random; tiny" if asked.tiny else "random, shapes of SD3.5-M, SD3.5-L and FLUX.1-dev",
        "text_encoders": "tiny" if asked.tiny else f"published widths, {asked.text_layers} layers each",
    }
    runs: list[dict[str, Any]] = []
    for name in asked.only:
        runs.append(bench.stage(name, asked))
        print(json.dumps({k: v for k, v in runs[-1].items() if k != "set"}), flush=True)
        if asked.write is not None:
            path = keep(asked.write, start | {"runs": runs, "shares_of_the_baseline": ratios(runs)})
            print(f"wrote {path}, {time.perf_counter() - started:.0f} s in", flush=True)
    print(json.dumps(ratios(runs), indent=1))
    bench.world.stop()
    return any("failed" in run for run in runs)


if __name__ == "__main__":
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    sys.exit(main())
