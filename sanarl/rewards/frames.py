"""Between media and what image models take: 8-bit frames of pictures and clips, in batches, each distinct text once."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import torch
from torch import Tensor

from sanarl.errors import UserError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def dtype_named(name: str) -> torch.dtype:
    """The torch dtype of a scorer's ``dtype`` argument.

    Raises:
        UserError: For another name.
    """
    if name not in DTYPES:
        raise UserError(f"dtype: found {name!r}; accepted: {', '.join(DTYPES)}")
    return DTYPES[name]


def finite_rows(media: Tensor) -> Tensor:
    """(B,) bool, whether every value of a row is finite.

    On the CPU a sum tells in a twentieth of the time of looking at each; only what it doubts is looked at. On a GPU
    nothing is waited for.
    """
    if media.device.type == "cpu" and all(math.isfinite(row.sum()) for row in media):
        return torch.ones(len(media), dtype=torch.bool)
    return torch.isfinite(media).flatten(1).all(1)


def eight_bit(media: Tensor) -> Tensor:
    """(..., 3, H, W) in [0, 1] as uint8, rounded and clamped as a saved picture would be.

    Image models were trained on saved pictures, and reward services are sent these bytes, so that scores are the same
    here and there.

    Raises:
        UserError: A pixel is not finite.
    """
    if not finite_rows(media).all():
        raise UserError("found NaN or infinity in a picture")
    return media.float().clamp(0, 1).mul(255).round().to(torch.uint8)


def chosen_frames(count: int, frames: int) -> list[int]:
    """``frames`` frame numbers of a clip of ``count``, evenly spaced from the first to the last.

    All when there are fewer; one frame is the middle one.
    """
    if frames >= count:
        return list(range(count))
    if frames == 1:
        return [count // 2]
    return [round(i * (count - 1) / (frames - 1)) for i in range(frames)]


OverFrames = Literal["mean", "min"]
"""What the scores of a clip's frames become: their mean, or the smallest, so that the worst frame counts."""

T = TypeVar("T")


def over_frames_named(name: str) -> OverFrames:
    """A scorer's ``over_frames`` argument.

    Raises:
        UserError: For another name.
    """
    if name == "mean" or name == "min":
        return name
    raise UserError(f"over_frames: found {name!r}; accepted: mean, min")


def framewise(
    media: Tensor,
    asked: Sequence[T],
    frames: int,
    batch_size: int,
    score: Callable[[Tensor, list[T]], Tensor],
    over: OverFrames = "mean",
) -> Tensor:
    """Score pictures, or clips by the mean or the minimum over some of their frames.

    Args:
        media: (B, F, 3, H, W) in [0, 1].
        asked: B prompts, or what else is asked of each; every frame of a clip is scored against the clip's.
        frames: Frames of a clip that are scored; see :func:`chosen_frames`.
        batch_size: Frames that ``score`` gets at once.
        score: uint8 (N, 3, H, W) and N of what is asked -> (N, ...).
        over: What the frames' scores become; of several numbers a frame, each on its own.

    Returns:
        (B, ...) float32 on the media's device; (0,) for no media.
    """
    picked = media[:, chosen_frames(media.shape[1], frames)]
    flat = eight_bit(picked.flatten(0, 1))
    each = [one for one in asked for _ in range(picked.shape[1])]
    parts = [
        score(flat[i : i + batch_size], each[i : i + batch_size]).float().to(media.device)
        for i in range(0, len(each), batch_size)
    ]
    if not parts:
        return torch.zeros(0, device=media.device)
    frame_scores = torch.cat(parts).unflatten(0, (len(asked), -1))  # (B, frames, ...)
    return frame_scores.mean(1) if over == "mean" else frame_scores.amin(1)


def each_once(texts: Sequence[str], encode: Callable[[list[str]], Tensor]) -> Tensor:
    """``encode(texts)`` (N, ...), computed once for each distinct text: a group's samples share their prompt."""
    distinct = list(dict.fromkeys(texts))
    rows = {text: row for row, text in enumerate(distinct)}
    return encode(distinct)[[rows[text] for text in texts]]
