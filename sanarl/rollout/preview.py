"""Sheets of samples for people to look at: captions above, scores below, the same noise in the same place.

Of a clip a sheet shows a few frames from the first to the last, side by side.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from sanarl.rewards.frames import chosen_frames
from sanarl.rollout.clips import write_mp4

GAP, TEXT = 6, 12
SHOWN_EDGE = 384  # no picture on a sheet is larger
STILLS = 4  # frames of a clip on a sheet


def to_image(frame: Tensor) -> Image.Image:
    """(3, H, W) in [0, 1] -> 8-bit RGB."""
    pixels = (frame.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0)
    return Image.fromarray(pixels.cpu().numpy(), "RGB")


def _cell(media: Tensor, edge: int) -> Image.Image:
    """What a sheet shows of (F, 3, H, W), frames with their longer side ``edge`` pixels.

    Small pictures are enlarged without smoothing.
    """
    shown = media[chosen_frames(len(media), STILLS)]
    picture = to_image(torch.cat(list(shown), dim=-1))  # side by side
    scale = edge / max(media.shape[-2:])
    size = (max(round(picture.width * scale), 1), max(round(picture.height * scale), 1))
    return picture.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS)


def sheet(rows: list[tuple[str, list[tuple[Tensor, float | None]]]], path: Path, columns: int = 4) -> None:
    """Write a sheet of labelled samples as PNG.

    Args:
        rows: for every entry a caption and its samples, each (media (F, 3, H, W), score or None), side by side:
            one sample, or before and after.
        path: the file; its folder is made.
        columns: pictures in a row of the sheet; of clips fewer fit.
    """
    if not rows:
        return
    first = rows[0][1][0][0]
    stills = min(len(first), STILLS)
    edge = min(max(128, *first.shape[-2:]), SHOWN_EDGE) if stills == 1 else 128
    font = ImageFont.load_default(size=TEXT)
    across = max(len(samples) for _, samples in rows)
    broad = stills * edge * first.shape[-1] // max(first.shape[-2:]) if stills > 1 else edge
    width, height = across * (broad + 2) + GAP, edge + 2 * (TEXT + 4) + GAP
    columns = min(max(columns // stills, 1), len(rows))
    canvas = Image.new("RGB", (columns * width + GAP, -(-len(rows) // columns) * height + GAP), "white")
    pen = ImageDraw.Draw(canvas)
    for number, (caption, samples) in enumerate(rows):
        left, top = GAP + number % columns * width, GAP + number // columns * height
        pen.text((left, top), _fitted(caption, font, width - GAP), fill="black", font=font)
        for place, (media, score) in enumerate(samples):
            x = left + place * (broad + 2)
            canvas.paste(_cell(media, edge), (x, top + TEXT + 4))
            if score is not None:
                pen.text((x, top + edge + TEXT + 6), f"{score:.2f}", fill="black", font=font)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.save(path)


def singles(prompts: list[str], media: Tensor, rewards: Sequence[float | None], folder: Path, fps: float) -> list[Path]:
    """Write every sample in full size: pictures as PNG, clips as mp4.

    Args:
        prompts: K captions. media: (K, F, 3, H, W). rewards: K, None where nothing scored.
        folder: gets ``NUMBER_WORDS_HASH.png`` (or mp4), where number and hash keep captions that begin alike apart, and
            ``index.json``: a list of ``{"file", "prompt", "reward"}``, and ``fps``.
        fps: of clips.

    Returns:
        the clips among the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    clips, listed = films(prompts, media, folder, fps), []
    for number, (prompt, sample, reward) in enumerate(zip(prompts, media, rewards, strict=True)):
        file = _file(folder, number, prompt, sample)
        if len(sample) == 1:
            to_image(sample[0]).save(file)
        listed.append({"file": file.name, "prompt": prompt, "reward": reward})
    document = json.dumps({"fps": fps, "samples": listed}, ensure_ascii=False, indent=1)
    (folder / "index.json").write_text(document + "\n", encoding="utf-8")
    return clips


def films(prompts: list[str], media: Tensor, folder: Path, fps: float) -> list[Path]:
    """Write clips under the names that ``singles`` gives them, and nothing of pictures."""
    clips = []
    for number, (prompt, sample) in enumerate(zip(prompts, media, strict=True)):
        if len(sample) > 1:
            clips.append(_file(folder, number, prompt, sample))
            write_mp4(sample, clips[-1], fps)
    return clips


def _file(folder: Path, number: int, prompt: str, sample: Tensor) -> Path:
    words = re.sub(r"[^a-z0-9]+", "-", prompt.lower()).strip("-")[:40].strip("-") or "prompt"
    digest = hashlib.blake2b(prompt.encode(), digest_size=4).hexdigest()
    return folder / f"{number:03d}_{words}_{digest}.{'png' if len(sample) == 1 else 'mp4'}"


def _fitted(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """``text`` in one line, cut with an ellipsis where it is wider than ``width`` pixels."""
    text = " ".join(text[: 10 * width].split())[:width]  # no letter is narrower than a pixel
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."
