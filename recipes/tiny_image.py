"""Make the weights of ``tiny-image`` again from nothing: ``python recipes/tiny_image.py --out DIR``.

Four stages, one core, under 20 minutes:

1. autoencoder on drawn pictures;
2. text encoder and transformer together, flow matching on right captions ("clean");
3. a short continuation on captions of which 50 % are wrong, as captions from the web are ("base"): it costs much of the
   reward and leaves the head-room that reinforcement learning is there to win back;
4. export: the base in float16, loaded again and measured.

Each finished stage is kept in the work folder and is not run again. Only ``train`` captions are learnt from, only
``dev`` captions are measured on. Seeds are fixed; figures repeat on the same versions and the same kind of machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from diffusers import AutoencoderDC, SanaPipeline

from sanarl.models.tiny import IMAGE_SIZE, MAX_PROMPT_TOKENS, build_pipeline, build_tokenizer
from sanarl.shapes.captions import balanced, parse, sample, split
from sanarl.shapes.drawing import render
from sanarl.shapes.scoring import score

SEED = 0
EVALUATED, SAMPLING_STEPS = 256, 10


# --- pictures -------------------------------------------------------------------------------------------------------


def draw(prompts: list[str], rng: random.Random) -> torch.Tensor:
    """Pictures of captions in [-1, 1]."""  # (N, 3, H, W)
    pictures = np.stack([render(p, rng) for p in prompts])
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1


def to_uint8(x: torch.Tensor) -> np.ndarray:
    return ((x.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()  # (N, H, W, 3)


def scores(pictures: np.ndarray, prompts: list[str]) -> dict[str, tuple[float, float]]:
    """Mean (reward, strict) of each kind and of all."""
    rows = defaultdict(list)
    for picture, prompt in zip(pictures, prompts, strict=True):
        s = score(picture, prompt)
        for kind in (parse(prompt).kind, "all"):
            rows[kind].append((s["reward"], s["strict"]))
    return {kind: tuple(np.mean(r, 0).round(3).tolist()) for kind, r in rows.items()}


# --- stage 1: autoencoder -------------------------------------------------------------------------------------------


def train_autoencoder(
    folder: Path, *, steps: int = 1200, num_pictures: int = 8192, batch: int = 16, lr: float = 3e-3, noise: float = 0.1
) -> None:
    """L1 + 2 MSE + 1e-3 z^2; noise on the latents teaches the decoder to forgive what the transformer gets wrong."""
    rng, dice = random.Random(SEED + 1), torch.Generator().manual_seed(SEED)
    pictures = draw(sample(split("train"), num_pictures, rng), rng)
    vae = build_pipeline(SEED).vae.train()
    optimiser = torch.optim.AdamW(vae.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, lr, steps, pct_start=0.1)
    start = time.monotonic()
    for step in range(1, steps + 1):
        x = pictures[torch.randint(len(pictures), (batch,), generator=dice)]
        with torch.autocast("cpu", torch.bfloat16):
            z = vae.encode(x).latent
            y = vae.decode(z + noise * torch.randn(z.shape, generator=dice)).sample
        error = y.float() - x
        loss = error.abs().mean() + 2 * error.square().mean() + 1e-3 * z.float().square().mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 0:
            print(f"  autoencoder {step:5d} loss {loss.item():.4f} {time.monotonic() - start:.0f} s", flush=True)
    vae.eval()
    with torch.no_grad():
        std = torch.cat([vae.encode(x).latent for x in pictures[:1024].split(128)]).std().item()
    vae.register_to_config(scaling_factor=1 / std)
    vae.save_pretrained(folder)
    report(folder, {"seconds": round(time.monotonic() - start), **measure_autoencoder(vae)})


@torch.no_grad()
def measure_autoencoder(vae: AutoencoderDC) -> dict[str, object]:
    prompts, rng = balanced("dev", EVALUATED), random.Random(SEED + 2)
    x = draw(prompts, rng)
    y = torch.cat([vae.decode(vae.encode(part).latent).sample for part in x.split(64)])
    mse = (y.clamp(-1, 1) - x).square().mean().item() / 4  # on [0, 1]
    return {"psnr_db": round(-10 * math.log10(mse), 2), "reconstructed": scores(to_uint8(y), prompts)["all"]}


# --- stages 2 and 3: text encoder and transformer -------------------------------------------------------------------


@dataclass(frozen=True)
class Tuning:
    """One run of flow matching."""

    steps: int
    lr: float
    text_lr: float
    wrong_captions: float
    seed: int
    batch: int = 32
    num_pictures: int = 16384
    warmup: int = 100
    caption_dropout: float = 0.1
    ema: float = 0.998


CLEAN = Tuning(steps=2500, lr=1.5e-3, text_lr=5e-4, wrong_captions=0.0, seed=SEED)
BASE = Tuning(steps=500, lr=1e-3, text_lr=5e-4, wrong_captions=0.5, seed=SEED + 1)


def embed(pipeline: SanaPipeline, tokens: dict[str, torch.Tensor]) -> torch.Tensor:
    return pipeline.text_encoder(tokens["input_ids"], attention_mask=tokens["attention_mask"]).last_hidden_state


def tokenise(pipeline: SanaPipeline, prompts: list[str]) -> dict[str, torch.Tensor]:
    tokens = pipeline.tokenizer(
        prompts, padding="max_length", max_length=MAX_PROMPT_TOKENS, truncation=True, return_tensors="pt"
    )
    return {name: tokens[name] for name in ("input_ids", "attention_mask")}


@torch.no_grad()
def prepare(pipeline: SanaPipeline, tuning: Tuning) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Scaled latents of drawn pictures, and their captions as tokens, of which the last row is the empty caption."""
    rng = random.Random(10 + tuning.seed)
    prompts = sample(split("train"), tuning.num_pictures, rng)
    pictures = draw(prompts, rng)
    others = sample(split("train"), tuning.num_pictures, rng)
    told = [o if rng.random() < tuning.wrong_captions else p for p, o in zip(prompts, others, strict=True)]
    latents = torch.cat([pipeline.vae.encode(part).latent for part in pictures.split(256)])
    return latents * pipeline.vae.config.scaling_factor, tokenise(pipeline, [*told, ""])


def train_flow(pipeline: SanaPipeline, tuning: Tuning, folder: Path) -> None:
    """Flow matching of velocity ``noise - latents`` with sigma = sigmoid(N(0.4, 1)); averaged weights are kept."""
    start, dice = time.monotonic(), torch.Generator().manual_seed(tuning.seed)
    latents, tokens = prepare(pipeline, tuning)
    transformer, text = pipeline.transformer.train(), pipeline.text_encoder.train()
    groups = [
        {"params": list(transformer.parameters()), "lr": tuning.lr},
        {"params": list(text.parameters()), "lr": tuning.text_lr},
    ]
    optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: rate(s, tuning))
    weights = [p for g in groups for p in g["params"]]
    averaged = [p.detach().clone() for p in weights]
    for step in range(1, tuning.steps + 1):
        rows = torch.randint(len(latents), (tuning.batch,), generator=dice)
        dropped = torch.rand(tuning.batch, generator=dice) < tuning.caption_dropout
        told = {name: t[torch.where(dropped, len(latents), rows)] for name, t in tokens.items()}
        sigma = torch.sigmoid(0.4 + torch.randn(tuning.batch, generator=dice))
        x0, noise = latents[rows], torch.randn(latents[rows].shape, generator=dice)
        s = sigma.view(-1, 1, 1, 1)
        v = velocity(pipeline, (1 - s) * x0 + s * noise, sigma, embed(pipeline, told), told["attention_mask"])
        loss = (v - (noise - x0)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        schedule.step()
        torch._foreach_lerp_(averaged, [p.detach() for p in weights], 1 - min(tuning.ema, (1 + step) / (10 + step)))
        if step % 100 == 0:
            print(f"  {folder.name} {step:5d} loss {loss.item():.4f} {time.monotonic() - start:.0f} s", flush=True)
    with torch.no_grad():
        torch._foreach_copy_(weights, averaged)
    transformer.eval()
    text.eval()
    pipeline.save_pretrained(folder)
    report(folder, {"seconds": round(time.monotonic() - start), "dev": measure(pipeline)})


def rate(step: int, tuning: Tuning) -> float:
    """Factor on the learning rate: linear warm-up, then a cosine down to 3 %."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(step / tuning.steps, 1)))
    return min((step + 1) / tuning.warmup, 1) * (0.97 * cosine + 0.03)


def velocity(
    pipeline: SanaPipeline, x: torch.Tensor, sigma: torch.Tensor, cond: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    return pipeline.transformer(
        x, encoder_hidden_states=cond, encoder_attention_mask=mask, timestep=sigma * 1000, return_dict=False
    )[0]


@torch.no_grad()
def measure(pipeline: SanaPipeline, n: int = EVALUATED) -> dict[str, tuple[float, float]]:
    """Mean (reward, strict) of ``n`` dev captions: ten Euler steps from fixed noise, no guidance."""
    prompts, rows = balanced("dev", n), []
    channels, side = pipeline.transformer.config.in_channels, IMAGE_SIZE // pipeline.vae_scale_factor
    noise = torch.randn(n, channels, side, side, generator=torch.Generator().manual_seed(123))
    for part in torch.arange(n).split(64):
        tokens = tokenise(pipeline, [prompts[i] for i in part])
        cond, x = embed(pipeline, tokens), noise[part]
        for k in range(SAMPLING_STEPS, 0, -1):
            sigma = torch.full((len(part),), k / SAMPLING_STEPS)
            x = x - velocity(pipeline, x, sigma, cond, tokens["attention_mask"]) / SAMPLING_STEPS
        rows.append(to_uint8(pipeline.vae.decode(x / pipeline.vae.config.scaling_factor).sample))
    return scores(np.concatenate(rows), prompts)


# --- stages ---------------------------------------------------------------------------------------------------------


def report(folder: Path, figures: dict[str, object]) -> None:
    """Print a stage's figures and keep them; the file also says that the stage is done, so it is written last."""
    print(f"{folder.name}: {json.dumps(figures)}", flush=True)
    (folder / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")


def done(folder: Path) -> bool:
    found = (folder / "figures.json").exists()
    print(f"{folder.name}: {'kept from an earlier run' if found else 'starting'} ({folder})", flush=True)
    return found


def load(folder: Path, dtype: torch.dtype = torch.float32) -> SanaPipeline:
    return SanaPipeline.from_pretrained(folder, local_files_only=True).to(dtype)


def export(base: Path, out: Path) -> None:
    """Write the base in float16 and measure what a reader of those files gets in float32."""
    pipeline = load(base, torch.float16)
    pipeline.tokenizer = build_tokenizer()  # the one in use remembers how it padded last
    pipeline.save_pretrained(out)
    for path in [out / "model_index.json", *out.rglob("*config.json")]:
        config = json.loads(path.read_text())
        config.pop("_name_or_path", None)  # a folder of this machine
        path.write_text(json.dumps(config, indent=2) + "\n")
    for path in out.rglob("*.safetensors"):
        path.chmod(0o644)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"export: {json.dumps({'megabytes': round(size / 1e6, 2), 'dev': measure(load(out))})}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder that gets the float16 pipeline")
    parser.add_argument("--work", type=Path, help="folder of finished stages (default: OUT-work)")
    arguments = parser.parse_args()
    work = arguments.work or arguments.out.with_name(arguments.out.name + "-work")
    autoencoder, clean, base = (work / name for name in ("autoencoder", "clean", "base"))
    start = time.monotonic()
    if not done(autoencoder):
        train_autoencoder(autoencoder)
    if not done(clean):
        pipeline = build_pipeline(SEED)
        pipeline.vae = AutoencoderDC.from_pretrained(autoencoder).eval()
        train_flow(pipeline, CLEAN, clean)
    if not done(base):
        train_flow(load(clean), BASE, base)
    export(base, arguments.out)
    print(f"all: {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
