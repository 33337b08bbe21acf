"""What trainers and reward services say to each other, in bytes; numpy and the standard library only.

A request is one line of JSON and an .npy file; docs/reward_service.md has the whole page. Cosmos-RL's trainer and
service speak the same.
"""

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.lib import format as npy

MediaType = Literal["image", "video", "latent"]

DEFAULT_TYPE = "dance_grpo"
"""The reward that a pull without a type means."""
TARGET_HEADER = "X-Lepton-Replica-Target"
PENDING, UNKNOWN = "pending", "unknown"
"""``state`` of a pull that is answered with 400: wait, or nobody here knows that request."""

HEADER_LIMIT = 10_000
PIECE = 1 << 18
_MAGIC = b"\x93NUMPY"


class Malformed(ValueError):
    """Bytes that are no request; the text says what was found and what is accepted."""


@dataclass(frozen=True)
class Head:
    """The line of JSON."""

    prompts: list[str]
    weights: dict[str, float]
    """Reward -> weight; 0 and less is skipped."""
    media_type: MediaType
    metadata: list[dict[str, Any]]
    """One dict a prompt."""
    only_strict: bool
    """Leave out what is for people alone."""

    @property
    def wanted(self) -> list[str]:
        """The rewards to score."""
        return [name for name, weight in self.weights.items() if weight > 0]


@dataclass(frozen=True)
class ArrayHeader:
    """What an .npy file says about itself before its numbers."""

    shape: tuple[int, ...]
    dtype: np.dtype
    start: int
    """Bytes before the numbers."""

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


class Body:
    """The bytes of a request in pieces; nothing large is copied."""

    def __init__(self, start: bytes, numbers: np.ndarray):
        self.start, self._numbers = start, memoryview(np.ascontiguousarray(numbers)).cast("B")

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield self.start
        for place in range(0, len(self._numbers), PIECE):
            yield self._numbers[place : place + PIECE]

    def __len__(self) -> int:
        return len(self.start) + len(self._numbers)


def pack(
    prompts: Sequence[str],
    weights: Mapping[str, float],
    media: np.ndarray,
    metadata: Sequence[Mapping[str, Any]],
    only_strict: bool | None = None,
) -> Body:
    """A request for pictures (B, H, W, 3) or clips (B, 3, T, H, W), uint8.

    Whole metadata travel under a key of our own; services of Cosmos-RL read GenEval's from theirs.

    Raises:
        ValueError: when metadata are not JSON.
    """
    head: dict[str, Any] = {
        "prompts": list(prompts),
        "reward_fn": dict(weights),
        "media_type": "image" if media.ndim == 4 else "video",
    }
    if only_strict is not None:
        head["geneval_only_strict"] = only_strict
    if any(metadata):
        head["metadata"] = [dict(m) for m in metadata]
    if metadata and all("tag" in m and "include" in m for m in metadata):
        head["geneval_tags"] = [m["tag"] for m in metadata]
        head["geneval_includes"] = [m["include"] for m in metadata]
    if metadata and all("video_fps" in m for m in metadata):
        head["video_infos"] = [{"video_fps": m["video_fps"]} for m in metadata]
    try:
        line = json.dumps(head, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"metadata that are not JSON cannot travel: {error}") from error
    file = io.BytesIO()
    npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(np.ascontiguousarray(media)))
    return Body(line.encode() + b"\n" + file.getvalue(), media)


def read_head(line: bytes) -> Head:
    """The line of JSON.

    Raises:
        Malformed: when it is none, or a field is missing or of another type.
    """
    try:
        found = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the first line is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Malformed(f"the first line is a JSON {type(found).__name__}; accepted: an object")
    prompts = _texts(found, "prompts")
    weights = found.get("reward_fn")
    if not isinstance(weights, dict) or not weights or not all(is_number(weight) for weight in weights.values()):
        raise Malformed("reward_fn is missing or no object of names and numbers")
    kind = str(found.get("media_type")).lower()
    media_type: MediaType = "image" if kind == "image" else "video" if kind == "video" else "latent"
    return Head(prompts, weights, media_type, _metadata(found, len(prompts)), bool(found.get("geneval_only_strict")))


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def is_number(value: object) -> bool:
    """Whether a value of JSON is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _texts(found: dict[str, Any], key: str) -> list[str]:
    texts = found.get(key)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise Malformed(f"{key} is missing or no list of texts")
    return texts


def _metadata(found: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Our own key where there is one, beside what Cosmos-RL's clients send in several."""
    own = found.get("metadata", [{}] * count)
    if not isinstance(own, list) or not all(isinstance(m, dict) for m in own):
        raise Malformed("metadata is no list of objects")
    metadata = [dict(m) for m in own]
    if len(metadata) != count:
        raise Malformed(f"{len(metadata)} metadata for {count} prompts")
    for key, name in (("geneval_tags", "tag"), ("geneval_includes", "include"), ("video_infos", "video_fps")):
        values = found.get(key)
        if values is None:
            continue
        if not isinstance(values, list) or len(values) not in (count, 0):
            raise Malformed(f"{key} is no list with an entry for every prompt")
        for one, value in zip(metadata, values, strict=False):
            if name == "video_fps":
                value = value.get(name) if isinstance(value, dict) else None
            one.setdefault(name, value)
    if "ocr_use_gpu" in found:
        for one in metadata:
            one.setdefault("ocr_use_gpu", found["ocr_use_gpu"])
    return metadata


def read_array_header(start: bytes) -> ArrayHeader | None:
    """What the .npy file that begins so says about itself; None when more bytes are needed.

    Raises:
        Malformed: when it is no .npy file of plain numbers.
    """
    if start[: len(_MAGIC)] != _MAGIC[: len(start)]:
        kind = "a pickle" if start[:1] == b"\x80" else "a zip file (.npz, .pt)" if start[:2] == b"PK" else "other bytes"
        raise Malformed(f"found {kind} after the first line; accepted: an .npy file")
    if len(start) < 12:
        return None
    version = (start[6], start[7])
    if version not in ((1, 0), (2, 0)):
        raise Malformed(f"found an .npy file of version {version[0]}.{version[1]}; accepted: 1.0 and 2.0")
    width = 2 if version == (1, 0) else 4
    length = 8 + width + int.from_bytes(start[8 : 8 + width], "little")
    if length > HEADER_LIMIT:
        raise Malformed(f"found an .npy header of {length} bytes; accepted: at most {HEADER_LIMIT}")
    if len(start) < length:
        return None
    file = io.BytesIO(start)
    file.seek(8)
    read = npy.read_array_header_1_0 if width == 2 else npy.read_array_header_2_0
    try:
        shape, _, dtype = read(file, max_header_size=HEADER_LIMIT)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise Malformed("the .npy header cannot be read") from error
    if dtype not in (np.dtype(np.uint8), np.dtype(np.float16)):
        what = "Python objects (a pickle)" if dtype.hasobject else str(dtype)
        raise Malformed(f"found an array of {what[:60]}; accepted: uint8 and float16")
    if any(side < 0 for side in shape):
        raise Malformed("the .npy header has a negative length")
    return ArrayHeader(tuple(int(side) for side in shape), dtype, length)


def misfit(head: Head, array: ArrayHeader) -> str | None:
    """Why the media cannot belong to the request: their shape, their type, their number. None when they can."""
    shape, kind = array.shape, head.media_type
    accepted = {
        "image": "uint8 (B, H, W, 3)",
        "video": "uint8 (B, 3, T, H, W)",
        "latent": "float16, or bfloat16 as uint8, (B, C, T, H, W) with 16 or 48 channels",
    }[kind]
    if kind == "image":
        good = array.dtype == np.uint8 and len(shape) == 4 and shape[3] == 3
    elif kind == "video":
        good = array.dtype == np.uint8 and len(shape) == 5 and shape[1] == 3
    else:
        good = len(shape) == 5 and shape[1] in (16, 48) and (array.dtype != np.uint8 or shape[-1] % 2 == 0)
    if not good or 0 in shape:
        return f"found {array.dtype} {shape} as {kind}; accepted: {accepted}"
    if shape[0] != len(head.prompts):
        return f"found {shape[0]} media for {len(head.prompts)} prompts; accepted: as many of both"
    return None
