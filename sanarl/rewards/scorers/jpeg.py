"""How large a picture is as a JPEG file, and how small: rewards without a model, for trying things out."""

import io
from typing import Any

import torch
from torch import Tensor

from sanarl.rewards.frames import framewise, over_frames_named

QUALITY = 95


class JpegIncompressibility:
    """Size of the picture as JPEG of quality 95 (Black et al. 2023, arXiv:2305.13301; as Flow-GRPO computes it).

    Scale: kilobytes of 1000 bytes, so larger pictures have more.

    Args:
        frames: Frames of a clip that are scored.
        over_frames: What their scores become: "mean" or "min".
    """

    def __init__(self, frames: int = 8, over_frames: str = "mean"):
        self.frames, self.over = frames, over_frames_named(over_frames)

    def __call__(self, media: Tensor, prompts: list[str], metadata: list[dict[str, Any]]) -> Tensor:  # noqa: ARG002
        """(B,) float32 for media (B, F, 3, H, W) in [0, 1]; clips are scored frame by frame."""
        return framewise(media, prompts, self.frames, 1, self._score, self.over)

    def _score(self, frames: Tensor, prompts: list[str]) -> Tensor:  # noqa: ARG002
        return kilobytes(frames)


class JpegCompressibility(JpegIncompressibility):
    """The same turned round: minus the size over 500 (as Flow-GRPO computes it), so small files score highest.

    Scale: below 0; -1 for half a megabyte.
    """

    def _score(self, frames: Tensor, prompts: list[str]) -> Tensor:  # noqa: ARG002
        return -kilobytes(frames) / 500


def kilobytes(frames: Tensor) -> Tensor:
    """uint8 (N, 3, H, W) -> (N,), each as a JPEG file."""
    from PIL import Image

    sizes = []
    for frame in frames.permute(0, 2, 3, 1).cpu().numpy():
        file = io.BytesIO()
        Image.fromarray(frame).save(file, format="JPEG", quality=QUALITY)
        sizes.append(file.tell() / 1000)
    return torch.tensor(sizes)
