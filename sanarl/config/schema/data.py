"""[data]: how files of a data set are read."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sanarl.config.schema.base import Accepts, Table, Text

SIDE = Annotated[int, Field(ge=32, le=8192, multiple_of=32)]
Sizes = Annotated[tuple[tuple[SIDE, SIDE], ...], Field(min_length=1, max_length=256)]


def _colour(value: str) -> str:
    if not re.fullmatch(r"#[0-9a-fA-F]{6}", value):
        raise ValueError('accepted "#rrggbb", such as "#ffffff" for white')
    return value.lower()


def _names(value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value))


class Data(Table):
    """How files of a data set are read; honoured by the dataset modules that ship."""

    on_bad: Literal["error", "skip"] = "error"
    """Pairs that are incomplete or damaged end the run before its first step, or are left out, counted and named; every
    rank agrees on what is left."""
    caption_keys: Annotated[tuple[Text, ...], Field(min_length=1), AfterValidator(_names)] = ("prompt",)
    """Names that the caption may have in json files, metadata.jsonl, csv and parquet; the first found counts."""
    alpha_colour: Annotated[str, AfterValidator(_colour), Accepts('"#rrggbb"')] = "#ffffff"
    """What shows through transparent pictures."""
    buckets: Annotated[bool | Sizes, Accepts("true, false, or a list of [height, width]")] = False
    """SFT: sizes that media are cropped to, each to the one of the nearest aspect; true: sizes of about the area of
    policy.diffusers.inference_size, from twice as tall to twice as wide; false: that size alone."""
    short_clips: Literal["error", "skip", "loop", "pad"] = "error"
    """Videos that end before policy.diffusers.train_frames: a fault, left out, played again, or held at their end."""
    cache: Text | None = None
    """SFT: a folder for latents and prompt embeddings, computed once; unset: computed anew every time."""
    reader: Literal["auto", "general_ocr", "geneval"] = "auto"
    """Prompt sets: SPLIT.txt (general_ocr), SPLIT_metadata.jsonl (geneval), or whichever is there."""
