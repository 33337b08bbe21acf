"""Media to the bytes of a .jpg or .mp4 file; the same media always give the same bytes."""

import io
from fractions import Fraction

import av
import numpy as np
from av.video.reformatter import Colorspace
from PIL import Image
from torch import Tensor

JPEG = {"quality": 95, "subsampling": 0}  # no colour is halved
X264 = {"crf": "12", "preset": "fast", "threads": "1"}
BT709 = 1  # matrix, primaries and transfer of the file's tags
LIMITED = 1  # range of the file's tags


def jpeg(media: Tensor) -> bytes:
    """A picture (1, 3, H, W) in [0, 1] as sRGB."""
    box = io.BytesIO()
    Image.fromarray(_bytes(media)[0]).save(box, "JPEG", **JPEG)
    return box.getvalue()


def mp4(media: Tensor, fps: float) -> bytes:
    """A clip (F, 3, H, W) in [0, 1] as H.264; a last odd line or column is cut, as the format needs pairs."""
    frames = _bytes(media[:, :, : media.shape[2] // 2 * 2, : media.shape[3] // 2 * 2])
    rate = Fraction(fps).limit_denominator(1001)
    box = io.BytesIO()
    with av.open(box, "w", format="mp4", container_options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=rate, options=dict(X264))
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], "yuv420p"
        context = stream.codec_context
        context.colorspace = context.color_primaries = context.color_trc = BT709
        context.color_range = LIMITED
        context.time_base = 1 / rate
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, "rgb24").reformat(
                format="yuv420p", dst_colorspace=Colorspace.ITU709
            )
            frame.pts, frame.time_base = number, 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return box.getvalue()


def _bytes(media: Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    """(F, 3, H, W) in [0, 1] -> (F, H, W, 3) of 0 to 255, rounded."""
    return np.ascontiguousarray((media * 255).round().byte().permute(0, 2, 3, 1).numpy())
