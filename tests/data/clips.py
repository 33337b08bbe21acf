"""Makes videos for tests: frame i is grey of level i * STEP, with a red corner at the top left."""

from fractions import Fraction

import av
import numpy as np

from sanarl.types import unit

STEP = 5  # grey levels between frames: more than what encoding moves


def write(path, stamps, fps=30, size=(48, 64), codec="libx264", rotation=None, aspect=None, last=1):
    """A video whose frame i is shown from ``stamps[i]`` ticks of 1 / fps on.

    Args:
        path: Its suffix says which container.
        stamps: Ascending ticks, or how many frames of one tick each.
        fps: Ticks of a second.
        size: Height and width.
        codec: Encoder.
        rotation: Degrees, anticlockwise, that a player shall turn it by.
        aspect: Width of a pixel over its height.
        last: Ticks that the last frame is shown.
    """
    stamps = list(range(stamps)) if isinstance(stamps, int) else list(stamps)
    height, width = size
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.time_base = Fraction(1, fps)
        stream.options = {"crf": "1", "preset": "ultrafast"} if codec == "libx264" else {}
        stream.bit_rate = 20_000_000
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = Fraction(aspect)
        if rotation is not None:
            stream.set_display_rotation(rotation)
        for number, stamp in enumerate(stamps):
            picture = np.full((height, width, 3), number * STEP % 256, np.uint8)
            picture[: height // 2, : width // 2] = (255, 0, 0)
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            frame.pts, frame.time_base = stamp, Fraction(1, fps)
            following = stamps[number + 1] if number + 1 < len(stamps) else stamp + last
            frame.duration = following - stamp
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def numbers(media):
    """Which frames of ``write`` a clip (F, 3, H, W) shows, read off its bottom right corner."""
    return [round(float(level) * 255 / STEP) for level in unit(media)[:, :, -2, -2].mean(1)]
