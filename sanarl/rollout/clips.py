"""Clips as files that every player takes: H.264 in mp4, yuv420p."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import av
import torch
from torch import Tensor


def write_mp4(media: Tensor, path: Path, fps: float, tags: Mapping[str, str] | None = None) -> None:
    """Write one clip.

    Args:
        media: (F, 3, H, W) in [0, 1]; an odd height or width loses its last line, which yuv420p cannot hold.
        path: the file; its folder is made.
        fps: frames a second.
        tags: name -> text, written into the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    media = media[..., : media.shape[-2] // 2 * 2, : media.shape[-1] // 2 * 2]
    frames = (media.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().contiguous().numpy()
    # Without this flag the format keeps only names of its own, such as title.
    with av.open(str(path), "w", format="mp4", options={"movflags": "use_metadata_tags"}) as container:
        container.metadata.update(tags or {})
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width, stream.pix_fmt = frames.shape[1], frames.shape[2], "yuv420p"
        stream.options = {"crf": "18", "preset": "veryfast"}
        for frame in frames:
            for packet in stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
