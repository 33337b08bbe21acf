"""The same prompts over the steps, as small pictures in the page."""

import base64
import io
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image

from sanarl.report.films import FRAMES, film, seconds

STEPS, PROMPTS, SHEETS = 24, 24, 6
EDGES = (256, 192, 128, 96, 64)
SMALL = 128  # pictures up to this size are kept without loss
CLIP = ".mp4"
SHEET_WIDTH = 1100


@dataclass(frozen=True)
class Found:
    """Samples of one evaluation."""

    step: int
    folder: Path
    samples: list[dict[str, Any]]


def gallery(samples: Path, budget: int, notes: list[str]) -> dict[str, Any] | None:
    """Held-out samples by prompt and step, within ``budget`` bytes of text.

    Of many evaluations the first, the last and some evenly between; pictures shrink until all fit.

    Returns:
        ``steps``; ``prompts``; ``rewards`` and ``pictures`` by step and prompt (None where there is none);
        ``clips``, how many frames a picture of them holds and how many seconds they last, None for pictures;
        ``left_out``, how many steps and prompts are not shown. None without samples.
    """
    found = _evaluations(samples)
    if not found:
        return None
    chosen = _spread(found, STEPS)
    prompts = _prompts(chosen[-1])
    edge = next((edge for edge in EDGES if _row_bytes(chosen[-1], prompts, edge) * len(chosen) <= budget), EDGES[-1])
    most = max(budget // max(_row_bytes(chosen[-1], prompts, edge), 1), 2)
    chosen = _spread(chosen, most)
    pictures = [[_picture(one, place, text, edge) for place, text in prompts] for one in chosen]
    missing = sum(data is None for row in pictures for data in row)
    if missing:
        notes.append(f"samples: {missing} picture(s) cannot be read")
    return {
        "steps": [one.step for one in chosen],
        "prompts": [text for _, text in prompts],
        "rewards": [[_reward(one, place, text) for place, text in prompts] for one in chosen],
        "pictures": pictures,
        "clips": _clips(chosen[-1]),
        "left_out": [len(found) - len(chosen), len(chosen[-1].samples) - len(prompts)],
    }


def sheets(samples: Path) -> list[dict[str, Any]]:
    """Some of the sheets of rollouts: ``step`` and ``picture``."""
    files = sorted(samples.glob("rollout_*.png"))
    result = []
    for file in _spread(files, SHEETS):
        digits = file.stem.removeprefix("rollout_")
        data = _encoded(file, SHEET_WIDTH)
        if digits.isdigit() and data is not None:
            result.append({"step": int(digits), "picture": data})
    return result


def _prompts(found: Found) -> list[tuple[int, str]]:
    """(place among the samples, prompt) of those that are shown: every prompt once before any stands there twice."""
    seen: dict[str, int] = {}
    order = []
    for place, sample in enumerate(found.samples):
        text = str(sample.get("prompt", ""))
        seen[text] = seen.get(text, 0) + 1
        order.append((seen[text], place, text))
    return sorted((place, text) for _, place, text in sorted(order)[:PROMPTS])


def _clips(found: Found) -> dict[str, Any] | None:
    names = [name for sample in found.samples if str(name := sample.get("file")).endswith(CLIP)]
    if not names:
        return None
    return {"frames": FRAMES, "seconds": seconds(found.folder / Path(names[0]).name)}


def _row_bytes(found: Found, prompts: list[tuple[int, str]], edge: int) -> int:
    """Length of all pictures of one evaluation as text."""
    return sum(len(_picture(found, place, text, edge) or "") for place, text in prompts)


def _evaluations(samples: Path) -> list[Found]:
    """Every step's samples that name their prompts, in order."""
    found = []
    for index in sorted(samples.glob("step_*/index.json")):
        digits = index.parent.name.removeprefix("step_")
        try:
            listed = json.loads(index.read_text(encoding="utf-8"))["samples"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        listed = [sample for sample in listed if isinstance(sample, dict)] if isinstance(listed, list) else []
        if digits.isdigit() and listed:
            found.append(Found(int(digits), index.parent, listed))
    return sorted(found, key=lambda one: one.step)


def _spread(items: list[Any], most: int) -> list[Any]:
    """At most ``most`` of ``items``, evenly, with the first and the last."""
    if len(items) <= most:
        return items
    return [items[i] for i in sorted({round(k * (len(items) - 1) / (most - 1)) for k in range(most)})]


def _sample(found: Found, place: int, prompt: str) -> dict[str, Any] | None:
    """The sample of that prompt at that place; a run whose prompts were changed has none."""
    sample = found.samples[place] if place < len(found.samples) else {}
    return sample if sample.get("prompt") == prompt else None


def _reward(found: Found, place: int, prompt: str) -> float | None:
    reward = (_sample(found, place, prompt) or {}).get("reward")
    return float(f"{reward:.5g}") if isinstance(reward, int | float) else None


def _picture(found: Found, place: int, prompt: str, edge: int) -> str | None:
    sample = _sample(found, place, prompt)
    name = sample.get("file") if sample else None
    if not isinstance(name, str) or Path(name).name != name:
        return None
    return _encoded(found.folder / name, edge)


def _encoded(file: Path, edge: int) -> str | None:
    """A picture, or a clip's frames side by side, as a data URI; None when it cannot be read."""
    try:
        return _encoded_once(file, file.stat().st_mtime_ns, edge)
    except OSError:
        return None


@lru_cache(maxsize=4096)
def _encoded_once(file: Path, _changed: int, edge: int) -> str | None:
    """As above; a page that follows a run asks for the same pictures again and again."""
    try:
        picture = film(file, edge) if file.suffix == CLIP else Image.open(file).convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
    small = max(picture.size) <= SMALL
    if file.suffix != CLIP:
        picture.thumbnail((edge, edge if edge != SHEET_WIDTH else 10 * edge), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    picture.save(stream, "WEBP", lossless=small, quality=60 if small else 80, method=4)
    return f"data:image/webp;base64,{base64.b64encode(stream.getvalue()).decode()}"
