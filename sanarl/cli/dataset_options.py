"""What the options of `sanarl dataset prepare` mean."""

import re
from dataclasses import dataclass

from sanarl.config import Config
from sanarl.data import settings as of_config
from sanarl.data.buckets import Size, grid
from sanarl.data.media import WHITE
from sanarl.data.prepare import Settings
from sanarl.data.video import Clip
from sanarl.errors import UserError

FPS = 16.0  # SANA-Video's
LARGEST = 8192


@dataclass(frozen=True)
class Given:
    """The options as written; None where one was left out."""

    size: str | None
    buckets: str | None
    frames: int | None
    fps: float | None
    short: str | None
    alpha: str | None
    caption_key: list[str] | None
    on_bad: str | None
    split: float


def settings(given: Given, config: Config | None) -> Settings:
    """Settings from a configuration, and options that override it.

    Raises:
        UserError: naming the option that is wrong.
    """
    if not 0 <= given.split < 1:
        raise UserError(f"--split: found {given.split:g}; accepted: a share of at least 0 and below 1, such as 0.1")
    for name, value, accepted in (
        ("--on-bad", given.on_bad, ("error", "skip")),
        ("--short", given.short, ("error", "skip", "loop", "pad")),
    ):
        if value is not None and value not in accepted:
            raise UserError(f"{name}: found {value!r}; accepted: {', '.join(accepted)}")
    data = config.data if config else None
    return Settings(
        sizes=_sizes(given, config),
        clip=_clip(given, config),
        background=_colour(given.alpha) if given.alpha else of_config.colour(data.alpha_colour) if data else WHITE,
        keys=tuple(given.caption_key or (data.caption_keys if data else ("prompt",))),
        on_bad="skip" if (given.on_bad or (data.on_bad if data else "error")) == "skip" else "error",
        held_out=given.split,
    )


def _sizes(given: Given, config: Config | None) -> tuple[Size, ...] | None:
    size = _size(given.size, "--size") if given.size else None
    if given.buckets == "auto":
        base = size or (config.policy.diffusers.inference_size if config else None)
        if base is None:
            raise UserError("--buckets auto: of which area? Say --size HEIGHTxWIDTH as well")
        return grid(base)
    if given.buckets:
        return tuple(dict.fromkeys(_size(text, "--buckets") for text in given.buckets.split(",")))
    if size:
        return (size,)
    return of_config.sizes(config) if config else None


def _size(text: str, option: str) -> Size:
    found = re.fullmatch(r"(\d{1,4})\s*[xX×]\s*(\d{1,4})", text.strip())
    size = (int(found[1]), int(found[2])) if found else (0, 0)
    if not all(1 < side <= LARGEST for side in size):
        raise UserError(f"{option}: found {text!r}; accepted: HEIGHTxWIDTH of 2 to {LARGEST} pixels, such as 512x768")
    return size


def _clip(given: Given, config: Config | None) -> Clip | None:
    diffusers = config.policy.diffusers if config else None
    frames = given.frames or (config.item_frames if config and config.modality == "video" else None)
    if frames is None:
        for name, value in (("--fps", given.fps), ("--short", given.short)):
            if value is not None:
                raise UserError(f"{name} is about clips; say how long they shall be with --frames 41, or leave it out")
        return None
    if frames % 4 != 1 or not 1 <= frames <= 100_001:
        near = max(1, (frames - 1) // 4 * 4 + 1)
        raise UserError(f"--frames: found {frames}; accepted: 4k + 1 (autoencoders pack time by four), such as {near}")
    fps = given.fps or (diffusers.fps if diffusers else FPS)
    if not 0 < fps <= 1000:
        raise UserError(f"--fps: found {fps:g}; accepted: above 0, at most 1000")
    short = given.short or (config.data.short_clips if config else "error")
    return Clip(frames, fps, short)  # type: ignore[arg-type]  # checked above


def _colour(text: str) -> tuple[int, int, int]:
    if not re.fullmatch(r"#[0-9a-fA-F]{6}", text):
        raise UserError(f'--alpha: found {text!r}; accepted: "#rrggbb", such as "#ffffff" for white')
    return of_config.colour(text)
