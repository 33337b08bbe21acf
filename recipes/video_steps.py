"""How a stage of recipes/tiny_video.py comes forward, within steps and time, and what it leaves behind."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import torch


class Progress:
    """From 0 to 1 by steps, or by time where that runs out first; time spent measuring does not count."""

    def __init__(self, steps: int, limit_s: float):
        self.steps, self.limit_s = steps, limit_s if torch.cuda.is_available() else math.inf
        self.step, self.paused, self.start = 0, 0.0, time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self.start - self.paused

    def value(self) -> float:
        return max(self.step / self.steps, self.seconds() / self.limit_s)

    def pause(self, since: float) -> None:
        self.paused += time.monotonic() - since

    def line(self, name: str, loss: torch.Tensor) -> None:
        print(f"  {name} {self.step:5d}/{self.steps} loss {loss.item():.4f} {self.seconds():.0f} s", flush=True)
        if not loss.isfinite():
            raise SystemExit(f"{name}: the loss is not finite")


def rate(progress: float, warmup: float = 0.05) -> float:
    """Factor on the learning rate: linear warm-up, then a cosine down to 3 %."""
    return min((progress + 1e-3) / warmup, 1) * (0.97 * 0.5 * (1 + math.cos(math.pi * min(progress, 1))) + 0.03)


def adamw(groups: list[dict], betas: tuple[float, float], weight_decay: float) -> torch.optim.AdamW:
    optimiser = torch.optim.AdamW(groups, betas=betas, weight_decay=weight_decay, fused=groups[0]["params"][0].is_cuda)
    for group in optimiser.param_groups:
        group["peak"] = group["lr"]
    return optimiser


def update(optimiser: torch.optim.AdamW, loss: torch.Tensor, progress: Progress) -> None:
    """One step on clipped gradients at the learning rate of this moment."""
    for group in optimiser.param_groups:
        group["lr"] = group["peak"] * rate(progress.value())
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_([p for g in optimiser.param_groups for p in g["params"]], 1.0)
    optimiser.step()
    progress.step += 1


def report(folder: Path, figures: dict[str, object]) -> None:
    """Print a stage's figures and keep them; the file also says that the stage is done, so it is written last."""
    print(f"{folder.name}: {json.dumps(figures)}", flush=True)
    (folder / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")


def done(folder: Path) -> bool:
    found = (folder / "figures.json").exists()
    print(f"{folder.name}: {'kept from an earlier run' if found else 'starting'} ({folder})", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    return found
