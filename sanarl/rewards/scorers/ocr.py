"""OCR reward: is the text that a prompt quotes written in the picture."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sanarl.errors import UserError
from sanarl.rewards.frames import framewise, over_frames_named
from sanarl.rewards.packages import required

Read = Callable[[Any], str]
"""uint8 (H, W, 3), RGB -> every recognised line, joined."""


class Ocr:
    """The share of a quoted text that a reader finds, as Flow-GRPO and Cosmos-RL compute it.

    Scale: 0 to 1. The target is the text between the first pair of straight double quotes. The recognised lines and the
    target lose spaces and case; a target that is contained has distance 0, any other its Levenshtein distance, at most
    its length without spaces; the reward is 1 - distance / length of the target with its spaces. So a blank picture
    for "NEW YORK CITY" scores 2 / 13.

    Args:
        engine: "rapidocr" (its models come with the package) or "paddleocr".
        threads: Of the reader on the CPU; None: as many as torch uses.
        frames: Frames of a clip that are read.
        over_frames: What their scores become: "mean" or "min".
    """

    def __init__(
        self, engine: str = "rapidocr", threads: int | None = None, frames: int = 8, over_frames: str = "mean"
    ):
        if engine not in _READERS:
            raise UserError(f"ocr: found the engine {engine!r}; accepted: {', '.join(_READERS)}")
        self.read = _READERS[engine](threads or torch.get_num_threads())
        self.frames, self.over = frames, over_frames_named(over_frames)

    @torch.no_grad()
    def __call__(self, media: Tensor, prompts: list[str], metadata: list[dict[str, Any]]) -> Tensor:  # noqa: ARG002
        """(B,) float32 for media (B, F, 3, H, W) in [0, 1]; clips are scored frame by frame.

        Raises:
            UserError: For a prompt without quotes.
        """
        for prompt in prompts:
            target(prompt)
        return framewise(media, prompts, self.frames, 1, self._score, self.over)

    def _score(self, frames: Tensor, prompts: list[str]) -> Tensor:
        pixels = frames.permute(0, 2, 3, 1).cpu().numpy()
        return torch.tensor([similarity(self.read(p), target(t)) for p, t in zip(pixels, prompts, strict=True)])


def target(prompt: str) -> str:
    """The text between the first pair of straight double quotes.

    Raises:
        UserError: There are no quotes.
    """
    parts = prompt.split('"')
    if len(parts) < 2:
        raise UserError(
            f"prompt {prompt!r} has no text in straight double quotes, which is what the picture is to show"
        )
    return parts[1]


def similarity(found: str, wanted: str) -> float:
    """1 where ``found`` contains ``wanted``, spaces and case aside, falling with the edit distance."""
    short = wanted.replace(" ", "").lower()
    text = found.replace(" ", "").lower()
    distance = 0 if short in text else min(levenshtein(text, short), len(short))
    return 1 - distance / max(1, len(wanted))


def levenshtein(a: str, b: str) -> int:
    """The fewest insertions, deletions and replacements of a character that make ``a`` into ``b``."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def _rapidocr(threads: int) -> Read:
    rapidocr = required("rapidocr", "rapidocr", "ocr")
    required("onnxruntime", "onnxruntime", "ocr")
    from PIL import Image

    limits = {"EngineConfig.onnxruntime.intra_op_num_threads": threads}
    reader = rapidocr.RapidOCR(params={"Global.log_level": "critical", **limits})

    def read(pixels: Any) -> str:
        return "".join(reader(Image.fromarray(pixels)).txts or ())

    read(torch.zeros(32, 32, 3, dtype=torch.uint8).numpy())  # loads the models here, not at the first batch
    return read


def _paddleocr(threads: int) -> Read:
    module = required("paddleocr", "paddleocr<3", "ocr")
    reader = module.PaddleOCR(lang="en", use_gpu=False, show_log=False, cpu_threads=threads)

    def read(pixels: Any) -> str:
        pages = reader.ocr(pixels)
        lines = pages[0] if pages and pages[0] else []
        return "".join(text for _, (text, confidence) in lines if confidence > 0)

    return read


_READERS: dict[str, Callable[[int], Read]] = {"rapidocr": _rapidocr, "paddleocr": _paddleocr}
