"""One decoder for every video file: frames by their time stamps, upright, never stretched."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO, Literal

import av
import numpy as np
import torch
from av.video.frame import VideoFrame
from av.video.reformatter import Colorspace
from PIL import Image
from torch import Tensor

from sanarl.data.buckets import Size
from sanarl.data.media import MAX_PIXELS, crop_rgb, planes
from sanarl.errors import UserError

Short = Literal["error", "skip", "loop", "pad"]

# By content, and nothing that could open another file or a network address (playlists, concat scripts).
FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm"
OPTIONS = {"format_whitelist": FORMATS, "protocol_whitelist": "", "max_streams": "64"}
HD_LINES = 720  # untagged video of fewer lines is taken as BT.601, else as BT.709, as players do
LARGEST_ASPECT = 10  # of a pixel; beyond it the container is wrong


class ShortClip(UserError):
    """A video that does not last as long as the clip asked for."""


@dataclass(frozen=True)
class Clip:
    """What is asked of a video: its first ``frames`` frames at ``fps``.

    ``short`` says what a video gets that ends before: error and skip raise ShortClip (the caller tells them apart),
    loop starts it anew, pad holds its last frame.
    """

    frames: int
    fps: float
    short: Short = "error"


@dataclass(frozen=True)
class Probe:
    """What a video holds, counted by decoding all of it."""

    frames: int
    seconds: float
    height: int
    width: int
    claimed: int
    """Frames that the container says it has; 0 when it says nothing."""


def decode_clip(path: str | Path, clip: Clip, sizes: tuple[Size, ...] | None = None) -> Tensor:
    """Read a clip from the start of a video.

    At time k / fps the frame is taken that a player would show then, whatever the container says of its rate or of its
    number of frames. Rotation and the shape of pixels are honoured.

    Args:
        path: MP4, MOV, MKV or WebM; its content decides, not its name.
        clip: How many frames, at which rate, and what becomes of short videos.
        sizes: (height, width) to cover-crop to: the one whose aspect is nearest; None keeps the video's own size.

    Returns:
        uint8 (F, 3, H, W).

    Raises:
        ShortClip: If the video is too short, unless ``clip.short`` is loop or pad.
        UserError: If the file is missing, damaged, foreign or too large, naming it.
    """
    out = None
    for k, picture in enumerate(clip_pictures(path, clip, sizes)):
        if out is None:
            out = torch.empty((clip.frames, 3, picture.height, picture.width), dtype=torch.uint8)
        planes(picture, out[k])
    assert out is not None, "a clip has a frame, or ShortClip was raised"
    return out


def clip_pictures(path: str | Path, clip: Clip, sizes: tuple[Size, ...] | None = None) -> Iterator[Image.Image]:
    """The frames of ``decode_clip`` one by one, so that memory holds one of them.

    Returns:
        ``clip.frames`` RGB pictures of one size.

    Raises:
        As decode_clip; ShortClip at the end.
    """
    path, left, shape = Path(path), clip.frames, None
    while left:  # again from the start, where a short clip is to be played again
        with _opened(path) as container:
            view = _View(_pixel_aspect(container), sizes)
            for frame, times in _shown(container, path, replace(clip, frames=left)):
                picture = view.picture(frame)
                shape = shape or picture.size
                if picture.size != shape:
                    raise UserError(f"{path}: its frames change their size; accepted: frames of one size")
                left -= times
                yield from (picture for _ in range(times))
        if clip.short == "pad":
            yield from (picture for _ in range(left))
            return


def examine_clip(path: str | Path, clip: Clip) -> Size:
    """Decode what ``decode_clip`` decodes and keep nothing of it.

    Returns:
        (height, width) as shown.

    Raises:
        As decode_clip.
    """
    path = Path(path)
    found: set[Size] = set()
    with _opened(path) as container:
        view = _View(_pixel_aspect(container), None)
        for frame, _ in _shown(container, path, clip):
            found.add(view.shape(frame))
    if len(found) > 1:
        raise UserError(f"{path}: its frames change their size; accepted: frames of one size")
    return found.pop()


def _shown(container: Any, path: Path, clip: Clip) -> Iterator[tuple[VideoFrame, int]]:
    """(frame, at how many of the times k / fps it is on screen), until the clip or the video ends.

    Raises:
        ShortClip: at the end, when the video ended first and the clip is not to be filled.
    """
    wanted = [Fraction(k) / Fraction(clip.fps).limit_denominator(1_000_000) for k in range(clip.frames)]
    done, end, shown = 0, Fraction(0), None
    for at, end, frame in _frames(container, path):  # noqa: B007  # the last end is the video's
        if shown is not None and (times := _due(wanted, done, at)):
            yield shown, times
            done += times
        shown = frame
        if done == len(wanted):
            return
    if shown is None:
        raise UserError(f"{path}: found no frame; accepted: a video")
    if times := max(_due(wanted, done, end), 0 if done else 1):  # whatever it says of its length, a frame is shown
        yield shown, times
        done += times
    if done < clip.frames and clip.short in ("error", "skip"):
        found = f"{float(end):.3f} s, which is {done} frames at {clip.fps:g} fps"
        raise ShortClip(f"{path}: found {found}; accepted: more than {float(wanted[-1]):.3f} s ({clip.frames} frames)")


def _due(wanted: list[Fraction], done: int, until: Fraction) -> int:
    """How many of the wanted times after the first ``done`` lie before ``until``.

    Time bases round: a frame of 1/30 s may be stamped 0.033. A time within a millisecond belongs to the next frame.
    """
    count = 0
    while done + count < len(wanted) and wanted[done + count] < until - Fraction(1, 1000):
        count += 1
    return count


def probe(path: str | Path) -> Probe:
    """Decode a whole video and count.

    Raises:
        UserError: If it cannot be decoded, naming it.
    """
    path = Path(path)
    count, end, last = 0, Fraction(0), None
    with _opened(path) as container:
        claimed = container.streams.video[0].frames
        for _, end, last in _frames(container, path):  # noqa: B007  # the last ones count
            count += 1
        if last is None:
            raise UserError(f"{path}: found no frame; accepted: a video")
        height, width = _View(_pixel_aspect(container), None).shape(last)
    return Probe(count, float(end), height, width, claimed)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing" if not path.exists() else "something that is not a file"
        raise UserError(f"{path}: found {found}; accepted: a video file")
    try:
        with path.open("rb") as file, _open(file) as container:
            if not container.streams.video:
                raise UserError(f"{path}: found no video in it; accepted: a video")
            stream = container.streams.video[0]
            context = stream.codec_context
            if context is None:
                raise UserError(f"{path}: found video in a codec that is not known here; accepted: H.264, VP9, ...")
            if context.width * context.height > MAX_PIXELS:
                found = f"{context.width} x {context.height} pixels"
                raise UserError(f"{path}: found {found}; accepted: at most {MAX_PIXELS} pixels")
            stream.thread_type = "AUTO"
            yield container
    except UserError:
        raise
    except Exception as error:  # PyAV raises many types on damaged files
        if path.stat().st_size == 0:
            raise UserError(f"{path}: found an empty file; accepted: a video") from error
        raise UserError(f"{path}: cannot be decoded: {error or type(error).__name__}") from error


def _open(file: BinaryIO) -> Any:
    # Titles in another encoding than UTF-8 are no reason to refuse the pictures.
    return av.open(file, container_options=dict(OPTIONS), metadata_errors="replace")


def _frames(container: Any, path: Path) -> Iterator[tuple[Fraction, Fraction, VideoFrame]]:
    """(start, end, frame) in seconds since the first frame, ascending; frames without a usable stamp follow on."""
    stream = container.streams.video[0]
    rate = stream.average_rate or stream.guessed_rate or Fraction(25)
    usual = 1 / Fraction(rate) if rate > 0 else Fraction(1, 25)
    first: Fraction | None = None
    at, end = Fraction(0), Fraction(0)
    for frame in container.decode(stream):
        if frame.width * frame.height > MAX_PIXELS:
            raise UserError(f"{path}: found {frame.width} x {frame.height} pixels; accepted: at most {MAX_PIXELS}")
        if frame.is_corrupt:
            raise UserError(f"{path}: cannot be decoded: a frame at {float(end):.3f} s is damaged")
        stamp = None if frame.pts is None or frame.time_base is None else frame.pts * frame.time_base
        if first is None:
            first = stamp if stamp is not None else Fraction(0)
        now = end if stamp is None else stamp - first
        if now < at:  # out of order: the container is wrong; the order of decoding is right
            now = end
        length = frame.duration * frame.time_base if frame.duration and frame.time_base is not None else usual
        at, end = now, now + (length if length > 0 else usual)
        yield at, end, frame


def _pixel_aspect(container: Any) -> Fraction:
    """How much wider than tall a pixel is shown."""
    aspect = container.streams.video[0].sample_aspect_ratio
    return Fraction(aspect) if aspect and 1 / LARGEST_ASPECT <= aspect <= LARGEST_ASPECT else Fraction(1)


@dataclass(frozen=True)
class _View:
    """How frames become pictures."""

    pixel_aspect: Fraction
    sizes: tuple[Size, ...] | None

    def shape(self, frame: VideoFrame) -> Size:
        """Height and width as shown: with square pixels, upright."""
        height, width = frame.height, self._width(frame)
        return (width, height) if _turns(frame) % 2 else (height, width)

    def picture(self, frame: VideoFrame) -> Image.Image:
        """As RGB."""
        # swscale resizes bicubically; only anamorphic video is resized here.
        rgb = frame.reformat(width=self._width(frame), format="rgb24", src_colorspace=_colours(frame)).to_ndarray()
        whole = Image.fromarray(np.ascontiguousarray(np.rot90(rgb, _turns(frame))))
        return whole if self.sizes is None else crop_rgb(whole, self.sizes)

    def _width(self, frame: VideoFrame) -> int:
        return max(1, round(frame.width * self.pixel_aspect))


def _turns(frame: VideoFrame) -> int:
    """Quarter turns, anticlockwise, that bring a frame upright."""
    return round(frame.rotation / 90) % 4


def _colours(frame: VideoFrame) -> Colorspace | None:
    """The matrix to read a frame with where it does not say so itself; None: what it says."""
    unsaid = 2
    return Colorspace.ITU709 if frame.colorspace == unsaid and frame.height >= HD_LINES else None
