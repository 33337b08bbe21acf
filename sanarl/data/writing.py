"""Media to the bytes of a .jpg or .mp4 file; the same media always give the same bytes."""

import io
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain

import av
import numpy as np
import torch
from av.video.reformatter import Colorspace
from PIL import Image
from torch import Tensor

JPEG = {"quality": 95, "subsampling": 0}  # no colour is halved
X264 = {"crf": "12", "preset": "fast", "threads": "1"}
BT709 = 1  # matrix, primaries and transfer of the file's tags
LIMITED = 1  # range of the file's tags


@dataclass(frozen=True)
class Written:
    """A picture or clip as a file."""

    data: bytes
    frames: int
    height: int
    width: int


def jpeg(media: Tensor) -> Written:
    """A picture (1, 3, H, W), uint8 or in [0, 1], as sRGB."""
    box = io.BytesIO()
    whole = media[0] if media.dtype == torch.uint8 else (media[0] * 255).round().byte()  # (3, H, W)
    picture = Image.fromarray(whole.permute(1, 2, 0).contiguous().numpy())
    picture.save(box, "JPEG", **JPEG)
    return Written(box.getvalue(), 1, picture.height, picture.width)


def mp4(pictures: Iterable[Image.Image], fps: float) -> Written:
    """A clip of RGB pictures of one size as H.264, taken one by one.

    A last odd line or column is cut, as the format needs pairs.
    """
    rate = Fraction(fps).limit_denominator(1001)
    box = io.BytesIO()
    pictures = iter(pictures)
    first = next(pictures)
    height, width, number = first.height // 2 * 2, first.width // 2 * 2, 0
    with av.open(box, "w", format="mp4", container_options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=rate, options=dict(X264))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        context = stream.codec_context
        context.colorspace = context.color_primaries = context.color_trc = BT709
        context.color_range = LIMITED
        context.time_base = 1 / rate
        for number, picture in enumerate(chain([first], pictures)):
            pixels = np.ascontiguousarray(np.asarray(picture)[:height, :width])
            frame = av.VideoFrame.from_ndarray(pixels, "rgb24").reformat(
                format="yuv420p", dst_colorspace=Colorspace.ITU709
            )
            frame.pts, frame.time_base = number, 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return Written(box.getvalue(), number + 1, height, width)
