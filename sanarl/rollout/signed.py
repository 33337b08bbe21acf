"""Pictures and clips that say how they were made: text chunks of PNG, tags of mp4."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from sanarl.rollout.clips import write_mp4
from sanarl.rollout.preview import to_image


def file_name(number: int, prompt: str, media: Tensor) -> str:
    """``NUMBER_WORDS_HASH.png`` (or mp4); number and hash keep prompts that begin alike apart.

    Args:
        number: of the sample. prompt: its text.
        media: (F, 3, H, W).
    """
    words = re.sub(r"[^a-z0-9]+", "-", prompt.lower()).strip("-")[:40].strip("-") or "prompt"
    digest = hashlib.blake2b(prompt.encode(), digest_size=4).hexdigest()
    return f"{number:04d}_{words}_{digest}.{'png' if len(media) == 1 else 'mp4'}"


def write_signed(media: Tensor, path: Path, fps: float, said: Mapping[str, str]) -> None:
    """Write one sample with its settings inside: ``PIL.Image.open(path).text``, or ``av.open(path).metadata``.

    Args:
        media: (F, 3, H, W) in [0, 1]; one frame becomes a PNG, several an mp4.
        path: the file; its folder is made.
        fps: of a clip.
        said: name -> text.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if len(media) > 1:
        write_mp4(media, path, fps, said)
        return
    chunks = PngInfo()
    for name, text in said.items():
        chunks.add_itxt(name, text)
    to_image(media[0]).save(path, pnginfo=chunks)
