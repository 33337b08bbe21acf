"""How much of a device's arithmetic a run uses: logging.report_mfu.

    FLOPs of a step = sum over passes of samples x  W + A    without gradients
                                                    2W + 3A  with gradients of an adapter
                                                    3W + 3A  with gradients of all weights
    perf/tflops     = FLOPs of a step / ranks / time/step / 1e12
    perf/mfu        = perf/tflops / peak

W are the operations of a sample's forward pass through linear layers and convolutions, A those of its attention, both
for its shape and its text. A backward pass costs as much again for every factor that has a gradient: one of a layer
whose weights are frozen, two of one that is trained and of attention. The adapter, the autoencoder, the text encoder
and rewards do not count, nor what gradient checkpointing computes again (model FLOPs, as in PaLM, Chowdhery et al.,
arXiv:2204.02311, appendix B).
"""

import re
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from sanarl.runtime.world import World

PEAKS: tuple[tuple[str, float, float], ...] = (
    ("B200", 2250.0, 75.0),
    ("GB200", 2500.0, 80.0),
    ("H200", 989.0, 67.0),
    ("H100 PCIe", 756.0, 51.0),
    ("H100 NVL", 835.0, 60.0),
    ("H100", 989.0, 67.0),
    ("A100", 312.0, 19.5),
    ("L40S", 362.0, 91.6),
    ("L4", 121.0, 30.3),
    ("A10", 125.0, 31.2),
    ("RTX 4090", 165.2, 82.6),
    ("RTX 3090", 71.0, 35.6),
)
"""Part of a device's name, dense bfloat16 and float32 TFLOP/s of its data sheet; the first that fits counts."""
SIZE, REPEATS = 1024, 4


class Peak(NamedTuple):
    """What a device could do."""

    tflops: float
    source: str


def peak(device: torch.device, dtype: torch.dtype) -> Peak:
    """TFLOP/s of a device at ``dtype``: from data sheets, else the fastest of some matrix products measured now."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for part, half, single in PEAKS:
            if re.search(rf"\b{part}\b", name):
                return Peak(single if dtype == torch.float32 else half, f"the data sheet of {part}")
    return Peak(measured(device, dtype), f"a product of {SIZE} x {SIZE} matrices, measured here")


def measured(device: torch.device, dtype: torch.dtype) -> float:
    """TFLOP/s of the fastest of a few products of square matrices."""
    a = torch.full((SIZE, SIZE), 0.5, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(REPEATS):
        started = time.perf_counter()
        product = a @ a
        product[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - started)
    return 2 * SIZE**3 / best / 1e12


class Meter:
    """Adds up the passes of a step."""

    def __init__(self, forward_flops: Callable[[tuple[int, ...], int], tuple[int, int]], trains_all: bool, peak: Peak):
        """Start at zero.

        Args:
            forward_flops: W and A of one sample, from its shape (C, ..., H, W) and its text tokens.
            trains_all: gradients reach all weights, not an adapter's alone.
            peak: of this rank's device.
        """
        self._forward_flops, self._with_gradients, self.peak = forward_flops, (3 if trains_all else 2, 3), peak
        self._flops = 0

    def saw(self, latents: torch.Size, tokens: int) -> None:
        """Count a pass of ``latents`` (B, C, ..., H, W) under the present gradient mode."""
        factors = self._with_gradients if torch.is_grad_enabled() else (1, 1)
        weights, attention = self._forward_flops(tuple(latents[1:]), tokens)
        self._flops += latents[0] * (weights * factors[0] + attention * factors[1])

    def take(self, seconds: float | None, world: World) -> dict[str, float]:
        """``perf/tflops`` and ``perf/mfu`` since the last call, a rank's on average; every rank calls this.

        Args:
            seconds: the step took; None: what was counted belongs to no step and is dropped.
            world: the ranks.
        """
        flops, self._flops = self._flops, 0
        if seconds is None:
            return {}
        total = float(world.sum(torch.tensor(float(flops), dtype=torch.float64, device=world.device)))
        tflops = total / world.size / seconds / 1e12
        return {"perf/tflops": tflops, "perf/mfu": tflops / self.peak.tflops}
