"""How a stage of recipes/tiny_video.py comes forward, within steps and time, and what it leaves behind."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch


class Progress:
    """From 0 to 1 by steps, or by time where that runs out first; time spent measuring does not count."""

    def __init__(self, steps: int, limit_s: float):
        self.steps, self.limit_s = steps, limit_s if torch.cuda.is_available() else math.inf
        self.step, self.start = 0, time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self.start

    def value(self) -> float:
        return max(self.step / self.steps, self.seconds() / self.limit_s)

    def line(self, name: str, loss: torch.Tensor) -> None:
        print(f"  {name} {self.step:5d}/{self.steps} loss {loss.item():.4f} {self.seconds():.0f} s", flush=True)
        if not loss.isfinite():
            raise SystemExit(f"{name}: the loss is not finite")


def rate(progress: float, warmup: float = 0.05) -> float:
    """Factor on the learning rate: linear warm-up, then a cosine down to 3 %."""
    return min((progress + 1e-3) / warmup, 1) * (0.97 * 0.5 * (1 + math.cos(math.pi * min(progress, 1))) + 0.03)


class Step:
    """One optimiser step on clipped gradients, at the learning rate of the moment.

    On a GPU it is recorded after a few steps and replayed from then on (a CUDA graph): these kernels are so small that
    launching them one by one takes most of the time. The loss must then draw its numbers from torch's own generator,
    read only tensors that stay where they are, and never ask the GPU for a value.
    """

    WARM_UP, AT_MOST_AHEAD = 4, 10

    def __init__(
        self,
        groups: list[dict],
        betas: tuple[float, float],
        weight_decay: float,
        loss: Callable[[], torch.Tensor],
    ):
        self.weights = [p for g in groups for p in g["params"]]
        self.peaks = [g["lr"] for g in groups]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.recordable = True
        self.loss, self.taken, self.on_gpu = loss, 0, self.weights[0].is_cuda
        if self.on_gpu:
            groups = [g | {"lr": torch.tensor(g["lr"], device="cuda")} for g in groups]
        self.optimiser = torch.optim.AdamW(
            groups, betas=betas, weight_decay=weight_decay, fused=self.on_gpu, capturable=self.on_gpu
        )

    def change_loss(self, loss: Callable[[], torch.Tensor]) -> None:
        """Go on with another loss, which is recorded anew."""
        self.loss, self.taken, self.graph = loss, 0, None

    def __call__(self, progress: Progress) -> torch.Tensor:
        """Take a step; the loss before it."""
        for group, peak in zip(self.optimiser.param_groups, self.peaks, strict=True):
            value = peak * rate(progress.value())
            if self.on_gpu:
                group["lr"].fill_(value)
            else:
                group["lr"] = value
        if not self.on_gpu:
            found = self._plain()
        else:
            found = self._on_a_side_stream() if self.taken < self.WARM_UP else self._replayed()
        self.taken += 1
        progress.step += 1
        if self.on_gpu and progress.step % self.AT_MOST_AHEAD == 0:
            torch.cuda.synchronize()
        return found

    def _plain(self) -> torch.Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimiser.step()
        return loss.detach()

    def _on_a_side_stream(self) -> torch.Tensor:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found = self._plain()
        torch.cuda.current_stream().wait_stream(stream)
        return found

    def _replayed(self) -> torch.Tensor:
        if self.graph is None and self.recordable:
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph):
                    self.found = self._plain()
                self.graph = graph
            except RuntimeError as error:
                print(f"  not recorded, going on step by step: {error}", flush=True)
                self.recordable = False
        if self.graph is None:
            return self._plain()
        self.graph.replay()
        return self.found


def report(folder: Path, figures: dict[str, object]) -> None:
    """Print a stage's figures and keep them; the file also says that the stage is done, so it is written last."""
    print(f"{folder.name}: {json.dumps(figures)}", flush=True)
    (folder / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")


def done(folder: Path) -> bool:
    found = (folder / "figures.json").exists()
    print(f"{folder.name}: {'kept from an earlier run' if found else 'starting'} ({folder})", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    return found
