"""Clips of the shapes world in motion, as recipes/tiny_video.py learns from them and looks at them."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from sanarl.shapes.clips import FRAMES, render, score
from sanarl.shapes.drawing import SIZE
from sanarl.shapes.motion import balanced, parse, sample, split

CHUNK = 64  # clips drawn from one random source


def draw_chunk(chunk: int) -> tuple[list[str], np.ndarray]:
    rng = random.Random(f"tiny-video {chunk}")
    prompts = sample(split("train"), CHUNK, rng)
    return prompts, np.stack([render(p, rng) for p in prompts])


def draw_clips(folder: Path, num_clips: int) -> None:
    """Clips as uint8 (N, F, H, W, 3) and their captions into ``folder``; the same for any number of cores."""
    prompts: list[str] = []
    clips = np.lib.format.open_memmap(
        folder / "clips.npy", mode="w+", dtype=np.uint8, shape=(num_clips, FRAMES, SIZE, SIZE, 3)
    )
    with multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:  # before CUDA is touched
        for told, drawn in pool.imap(draw_chunk, range(-(-num_clips // CHUNK))):
            n = min(CHUNK, num_clips - len(prompts))
            clips[len(prompts) : len(prompts) + n] = drawn[:n]
            prompts += told[:n]
    clips.flush()
    (folder / "captions.json").write_text(json.dumps(prompts))


def read_clips(folder: Path, device: torch.device) -> tuple[torch.Tensor, list[str]]:
    clips = torch.from_numpy(np.load(folder / "clips.npy", mmap_mode="c"))
    return clips.to(device), json.loads((folder / "captions.json").read_text())


def to_model(clips: torch.Tensor, device: torch.device) -> torch.Tensor:
    """uint8 (B, F, H, W, 3) -> float (B, 3, F, H, W) in [-1, 1]."""
    return clips.permute(0, 4, 1, 2, 3).to(device, torch.float32) / 127.5 - 1


def to_uint8(x: torch.Tensor) -> np.ndarray:
    return ((x.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 4, 1).cpu().numpy()


def dev_clips(n: int) -> tuple[list[str], np.ndarray]:
    prompts, rng = balanced("dev", n), random.Random(2)
    return prompts, np.stack([render(p, rng) for p in prompts])


def scores(clips: np.ndarray, prompts: list[str]) -> dict[str, tuple[float, float]]:
    """Mean (reward, strict) of each kind and of all."""
    rows = defaultdict(list)
    for clip, prompt in zip(clips, prompts, strict=True):
        s = score(clip, prompt)
        for kind in ("all", parse(prompt).kind):
            rows[kind].append((s["reward"], s["strict"]))
    return {kind: tuple(np.mean(r, 0).round(3).tolist()) for kind, r in rows.items()}


def write_sheet(clips: np.ndarray, path: Path) -> None:
    """Clips below each other, frames side by side."""
    Image.fromarray(np.concatenate([np.concatenate(list(clip), 1) for clip in clips], 0)).save(path)
