"""Clips in a page: some of their frames side by side in one picture, of which the page shows one at a time."""

from pathlib import Path

from PIL import Image

FRAMES = 9
"""Frames of a clip that a page holds, evenly over its length."""


def film(file: Path, edge: int) -> Image.Image:
    """``FRAMES`` frames of a clip, first and last among them, side by side; a shorter clip repeats some.

    Raises:
        OSError: when it cannot be read.
    """
    frames = _frames(file, edge)
    last = len(frames) - 1
    shown = [frames[round(k * last / (FRAMES - 1))] for k in range(FRAMES)]
    picture = Image.new("RGB", (sum(frame.width for frame in shown), shown[0].height))
    for place, frame in enumerate(shown):
        picture.paste(frame, (place * shown[0].width, 0))
    return picture


def _frames(file: Path, edge: int) -> list[Image.Image]:
    """Every frame, no side longer than ``edge``."""
    import av

    found = []
    try:
        with av.open(str(file)) as container:
            for decoded in container.decode(video=0):
                frame = decoded.to_image()
                frame.thumbnail((edge, edge), Image.Resampling.LANCZOS)
                found.append(frame)
    except (av.FFmpegError, IndexError) as error:  # IndexError: no stream of pictures in it
        raise OSError(str(error)) from error
    if not found:
        raise OSError(f"{file}: no frame")
    return found


def seconds(file: Path) -> float | None:
    """How long a clip lasts; None when it does not say."""
    import av

    try:
        with av.open(str(file)) as container:
            length = container.duration
    except (av.FFmpegError, OSError):
        return None
    return None if length is None else length / av.time_base
