"""Make the weights of ``tiny-video`` again from nothing: ``python recipes/tiny_video.py --out DIR``.

Five stages, under four minutes on one H200 (slowly on a CPU):

1. clips: drawn once, by all CPU cores;
2. autoencoder;
3. text encoder and transformer together, flow matching on right captions ("clean");
4. a short continuation on captions of which a share is wrong ("base"), as for ``tiny-image``; once a ``--wrong``;
5. export: the base whose dev reward is nearest to ``--target``, in float16, loaded again and measured.

Each finished stage is kept in the work folder and is not run again. Only ``train`` captions are learnt from, only
``dev`` captions are measured on. Seeds are fixed; figures repeat up to rounding. On a GPU a stage also has a time
limit: learning rates follow whatever runs out first, steps or time, so a slow card ends early rather than cut short.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from diffusers import AutoencoderKLWan, SanaVideoPipeline
from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify
from diffusers.utils.logging import disable_progress_bar
from video_clips import dev_clips, draw_clips, read_clips, scores, to_model, to_uint8, write_sheet
from video_steps import Progress, Step, done, report

from sanarl.models.tiny import build_tokenizer
from sanarl.models.tiny_video import MAX_PROMPT_TOKENS, build_video_pipeline
from sanarl.shapes.clips import FRAMES
from sanarl.shapes.drawing import SIZE
from sanarl.shapes.motion import all_prompts, balanced

SEED = 0
EVALUATED, SAMPLING_STEPS = 256, 10  # dev captions at the end of a stage
NOISE = 0.1  # on the latents, as the decoder sees them in training
AUTOENCODER_STEPS, AUTOENCODER_S = 12000, 90
PICTURES_AT_ONCE, CLIPS_AT_ONCE = 64, 16
PICTURES = 0.2  # of the autoencoder's training, at its beginning, on single frames
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


# --- stage 2: autoencoder -------------------------------------------------------------------------------------------


def decode(vae: AutoencoderKLWan, z: torch.Tensor) -> torch.Tensor:
    """As ``vae.decode``, but not clamped to [-1, 1]: beyond the clamp there would be no gradient."""
    vae.clear_cache()
    x, parts = vae.post_quant_conv(z), []
    for i in range(x.shape[2]):
        vae._conv_idx = [0]
        parts.append(vae.decoder(x[:, :, i : i + 1], vae._feat_map, vae._conv_idx, first_chunk=i == 0))
    vae.clear_cache()
    return unpatchify(torch.cat(parts, 2), vae.config.patch_size)


def autoencoder_loss(vae: AutoencoderKLWan, clips: torch.Tensor, batch: int, single: bool) -> torch.Tensor:
    """L1 + 2 MSE + 1e-3 z^2; noise on the latents teaches the decoder to forgive what the transformer gets wrong.

    The encoder's variance is drawn to that of the noise, so that samples of the posterior decode as well as its mode.
    ``single`` takes one frame of each clip.
    """
    rows = torch.randint(len(clips), (batch,), device=DEVICE)
    if single:
        x = to_model(clips[rows, torch.randint(FRAMES, (batch,), device=DEVICE)][:, None], DEVICE)
    else:
        x = to_model(clips[rows], DEVICE)
    posterior = vae.encode(x).latent_dist
    z = posterior.mode()
    error = decode(vae, z + NOISE * torch.randn_like(z)) - x
    spread = (posterior.logvar - 2 * math.log(NOISE)).square().mean()
    return error.abs().mean() + 2 * error.square().mean() + 1e-3 * (z.square().mean() + spread)


def train_autoencoder(clips: torch.Tensor, folder: Path, *, steps: int, limit_s: float, lr: float = 2e-3) -> None:
    """Single pictures first: the spatial half learns from them at a ninth of the cost; then whole clips."""
    torch.manual_seed(SEED)
    vae = build_video_pipeline(SEED).vae.train().to(DEVICE)
    groups = [{"params": list(vae.parameters()), "lr": lr}]
    step = Step(groups, (0.9, 0.99), 0.0, lambda: autoencoder_loss(vae, clips, PICTURES_AT_ONCE, single=True))
    progress, pictures = Progress(steps, limit_s), True
    while progress.value() < 1:
        if pictures and progress.value() >= PICTURES:
            step.change_loss(lambda: autoencoder_loss(vae, clips, CLIPS_AT_ONCE, single=False))
            pictures = False
        loss = step(progress)
        if progress.step % 200 == 0 or progress.step == 20:
            progress.line("autoencoder, pictures" if pictures else "autoencoder", loss)
    vae.eval()
    with torch.no_grad():
        latents = torch.cat([vae.encode(to_model(part, DEVICE)).latent_dist.mode() for part in clips[:1024].split(128)])
    mean, std = latents.mean((0, 2, 3, 4)), latents.std((0, 2, 3, 4))
    vae.register_to_config(latents_mean=mean.tolist(), latents_std=std.clamp(min=NOISE).tolist())  # a dead channel
    vae.save_pretrained(folder)
    figures = {"seconds": round(progress.seconds()), "steps": progress.step, "latents_std": std.tolist()}
    report(folder, figures | measure_autoencoder(vae, folder / "sheet.png"))


@torch.no_grad()
def measure_autoencoder(vae: AutoencoderKLWan, sheet: Path) -> dict[str, object]:
    """Reconstructed dev clips; the sheet shows drawn and reconstructed below each other."""
    prompts, drawn = dev_clips(EVALUATED)
    x = torch.from_numpy(drawn)
    y = to_uint8(
        torch.cat([vae.decode(vae.encode(to_model(p, DEVICE)).latent_dist.mode()).sample for p in x.split(64)])
    )
    write_sheet(np.stack([drawn[::32], y[::32]], 1).reshape(-1, *y.shape[1:]), sheet)
    mse = np.square(y.astype(np.float32) - drawn).mean() / 255**2
    return {"psnr_db": round(-10 * math.log10(mse), 2), "reconstructed": scores(y, prompts)}


# --- stages 3 and 4: text encoder and transformer -------------------------------------------------------------------


@dataclass(frozen=True)
class Tuning:
    """One run of flow matching."""

    steps: int
    limit_s: float
    lr: float
    text_lr: float
    seed: int
    batch: int = 256
    caption_dropout: float = 0.1
    ema: float = 0.998


CLEAN = Tuning(steps=12000, limit_s=55, lr=1.5e-3, text_lr=5e-4, seed=SEED)
BASE = Tuning(steps=500, limit_s=10, lr=1e-3, text_lr=5e-4, seed=SEED + 1)


def normal(vae: AutoencoderKLWan) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and deviation of the latents, each (1, C, 1, 1, 1)."""
    values = (vae.config.latents_mean, vae.config.latents_std)
    mean, std = (torch.tensor(v, device=DEVICE).view(1, -1, 1, 1, 1) for v in values)
    return mean, std


@torch.no_grad()
def encode_clips(vae: AutoencoderKLWan, clips: torch.Tensor) -> torch.Tensor:
    """Normalised latents (N, C, T, h, w) of all clips."""
    mean, std = normal(vae)
    return torch.cat([(vae.encode(to_model(p, DEVICE)).latent_dist.mode() - mean) / std for p in clips.split(256)])


def embed(pipeline: SanaVideoPipeline, tokens: dict[str, torch.Tensor]) -> torch.Tensor:
    """As the pipeline does; the masks are made here because transformers would ask the GPU whether any is needed."""
    real, L = tokens["attention_mask"].bool(), tokens["input_ids"].shape[1]
    seen = real[:, None, None, :] & torch.ones(L, L, dtype=torch.bool, device=DEVICE).tril()  # (B, 1, L, L)
    seen = seen | torch.eye(L, dtype=torch.bool, device=DEVICE)  # a row that sees nothing would be nan
    mask = torch.zeros(seen.shape, device=DEVICE).masked_fill(~seen, torch.finfo(torch.float32).min)
    masks = {"full_attention": mask, "sliding_attention": mask}  # captions are shorter than the window
    return pipeline.text_encoder(tokens["input_ids"], attention_mask=masks, use_cache=False).last_hidden_state


def tokenise(pipeline: SanaVideoPipeline, prompts: list[str]) -> dict[str, torch.Tensor]:
    tokens = pipeline.tokenizer(
        prompts, padding="max_length", max_length=MAX_PROMPT_TOKENS, truncation=True, return_tensors="pt"
    )
    return {name: tokens[name].to(DEVICE) for name in ("input_ids", "attention_mask")}


def velocity(
    pipeline: SanaVideoPipeline, x: torch.Tensor, sigma: torch.Tensor, cond: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    return pipeline.transformer(
        x, encoder_hidden_states=cond, encoder_attention_mask=mask, timestep=sigma * 1000, return_dict=False
    )[0]


def flow_loss(
    pipeline: SanaVideoPipeline, latents: torch.Tensor, tokens: dict[str, torch.Tensor], tuning: Tuning, wrong: float
) -> torch.Tensor:
    """Squared error of velocity ``noise - latents`` at sigma = sigmoid(N(0.4, 1)).

    Of the captions, whose last row is the empty one, ``wrong`` is the share taken from another clip.
    """
    n, b = len(latents), tuning.batch

    def share(p: float) -> torch.Tensor:
        return torch.rand(b, device=DEVICE) < p

    rows, others = torch.randint(n, (2, b), device=DEVICE)
    told = torch.where(share(wrong), others, rows)
    told = torch.where(share(tuning.caption_dropout), n, told)
    x0 = latents[rows]
    sigma = torch.sigmoid(0.4 + torch.randn(b, device=DEVICE))
    noise = torch.randn_like(x0)
    s, captions = sigma.view(-1, 1, 1, 1, 1), {name: t[told] for name, t in tokens.items()}
    v = velocity(pipeline, (1 - s) * x0 + s * noise, sigma, embed(pipeline, captions), captions["attention_mask"])
    return (v - (noise - x0)).square().mean()


def train_flow(
    pipeline: SanaVideoPipeline,
    latents: torch.Tensor,
    prompts: list[str],
    tuning: Tuning,
    folder: Path,
    wrong: float = 0.0,
) -> None:
    """Train text encoder and transformer; averaged weights are kept."""
    torch.manual_seed(tuning.seed)
    tokens = tokenise(pipeline, [*prompts, ""])
    parts = (pipeline.transformer.train(), pipeline.text_encoder.train())
    groups = [
        {"params": list(m.parameters()), "lr": lr} for m, lr in zip(parts, (tuning.lr, tuning.text_lr), strict=True)
    ]
    step = Step(groups, (0.9, 0.98), 0.01, lambda: flow_loss(pipeline, latents, tokens, tuning, wrong))
    averaged = [p.detach().clone() for p in step.weights]
    progress = Progress(tuning.steps, tuning.limit_s)
    while progress.value() < 1:
        loss = step(progress)
        keep = min(tuning.ema, (1 + progress.step) / (10 + progress.step))
        torch._foreach_lerp_(averaged, [p.detach() for p in step.weights], 1 - keep)
        if progress.step % 500 == 0 or progress.step == 20:
            progress.line(folder.name, loss)
    with torch.no_grad():
        torch._foreach_copy_([p.detach() for p in step.weights], averaged)
    for part in parts:
        part.eval()
    pipeline.save_pretrained(folder)
    figures = {"seconds": round(progress.seconds()), "steps": progress.step, "wrong": wrong}
    report(folder, figures | {"dev": measure(pipeline, EVALUATED, folder / "sheet.png")})


@torch.no_grad()
def measure(pipeline: SanaVideoPipeline, n: int, sheet: Path | None = None) -> dict[str, tuple[float, float]]:
    """Mean (reward, strict) of ``n`` dev captions: ten Euler steps from fixed noise, no guidance."""
    prompts, rows = balanced("dev", n), []
    mean, std = normal(pipeline.vae)
    shape = (pipeline.transformer.config.in_channels, (FRAMES - 1) // 4 + 1, SIZE // 8, SIZE // 8)
    noise = torch.randn(n, *shape, generator=torch.Generator().manual_seed(123)).to(DEVICE)
    for part in torch.arange(n).split(64):
        tokens = tokenise(pipeline, [prompts[i] for i in part])
        cond, x = embed(pipeline, tokens), noise[part.to(DEVICE)]
        for k in range(SAMPLING_STEPS, 0, -1):
            sigma = torch.full((len(part),), k / SAMPLING_STEPS, device=DEVICE)
            x = x - velocity(pipeline, x, sigma, cond, tokens["attention_mask"]) / SAMPLING_STEPS
        rows.append(to_uint8(pipeline.vae.decode(x * std + mean).sample))
    clips = np.concatenate(rows)
    if sheet:
        write_sheet(clips[:: max(1, n // 16)], sheet)
    return scores(clips, prompts)


# --- stages ---------------------------------------------------------------------------------------------------------


def load(folder: Path, dtype: torch.dtype = torch.float32) -> SanaVideoPipeline:
    return SanaVideoPipeline.from_pretrained(folder, local_files_only=True, dtype=dtype)


def export(base: Path, out: Path) -> dict[str, object]:
    """Write the base in float16 and measure what a reader of those files gets in float32."""
    pipeline = load(base, torch.float16)
    pipeline.tokenizer = build_tokenizer(all_prompts())  # the one in use remembers how it padded last
    pipeline.save_pretrained(out)
    for path in [out / "model_index.json", *out.rglob("*config.json")]:
        config = json.loads(path.read_text())
        config.pop("_name_or_path", None)  # a folder of this machine
        path.write_text(json.dumps(config, indent=2) + "\n")
    for path in out.rglob("*.safetensors"):
        path.chmod(0o644)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return {"base": base.name, "megabytes": round(size / 1e6, 2), "dev": measure(load(out).to(DEVICE), EVALUATED)}


def run(arguments: argparse.Namespace, work: Path) -> dict[str, object]:
    """All stages, each unless it is done."""

    def scaled(steps: int) -> int:
        return max(2, round(steps * arguments.steps_scale))

    drawn, autoencoder, clean = (work / name for name in ("clips", "autoencoder", "clean"))
    bases = {wrong: work / f"base-{round(100 * wrong)}" for wrong in arguments.wrong}
    if not done(drawn):
        start = time.monotonic()
        draw_clips(drawn, arguments.num_clips)  # before CUDA is touched: it forks
        report(drawn, {"seconds": round(time.monotonic() - start), "clips": arguments.num_clips})
    clips, prompts = read_clips(drawn, DEVICE)
    if not done(autoencoder):
        train_autoencoder(clips, autoencoder, steps=scaled(AUTOENCODER_STEPS), limit_s=AUTOENCODER_S)
    vae = AutoencoderKLWan.from_pretrained(autoencoder).eval().to(DEVICE)
    latents = encode_clips(vae, clips)
    if not done(clean):
        pipeline = build_video_pipeline(SEED)
        pipeline.vae = vae
        tuning = Tuning(**vars(CLEAN) | {"steps": scaled(CLEAN.steps)})
        train_flow(pipeline.to(DEVICE), latents, prompts, tuning, clean)
    for wrong, folder in bases.items():
        if not done(folder):
            tuning = Tuning(**vars(BASE) | {"steps": scaled(BASE.steps)})
            train_flow(load(clean).to(DEVICE), latents, prompts, tuning, folder, wrong)
    figures = {
        f.name: json.loads((f / "figures.json").read_text()) for f in (drawn, autoencoder, clean, *bases.values())
    }
    best = min(bases.values(), key=lambda f: abs(figures[f.name]["dev"]["all"][0] - arguments.target))
    return figures | {"export": export(best, arguments.out)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder that gets the float16 pipeline")
    parser.add_argument("--work", type=Path, help="folder of finished stages (default: OUT-work)")
    parser.add_argument("--wrong", type=float, nargs="+", default=[0.25], help="shares of wrong captions to try")
    parser.add_argument("--target", type=float, default=0.4, help="dev reward that the exported base shall be near")
    parser.add_argument("--num-clips", type=int, default=16384)
    parser.add_argument("--steps-scale", type=float, default=1.0, help="factor on the steps of every stage, for trials")
    arguments = parser.parse_args()
    disable_progress_bar()
    if DEVICE.type == "cuda":  # no autocast: it would add more small kernels
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    start = time.monotonic()
    figures = run(arguments, arguments.work or arguments.out.with_name(arguments.out.name + "-work"))
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"
    figures |= {"seconds": round(time.monotonic() - start), "device": name, "torch": torch.__version__}
    arguments.out.with_name(arguments.out.name + "-figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(f"export: {json.dumps(figures['export'])}\nall: {figures['seconds']} s on {name}", flush=True)


if __name__ == "__main__":
    main()
