"""From configuration keys to how files are read."""

from sanarl.config import Config
from sanarl.data.buckets import Size, grid
from sanarl.data.folder import View
from sanarl.data.media import Colour
from sanarl.data.video import Clip


def sizes(config: Config) -> tuple[Size, ...]:
    """The (height, width) that training media may have: inference_size, or what data.buckets says."""
    asked, size = config.data.buckets, config.policy.diffusers.inference_size
    if asked is True:
        return grid(size)
    return (size,) if asked is False else tuple(dict.fromkeys(asked))


def view(config: Config) -> View:
    """How media of a folder become what training takes."""
    data, diffusers = config.data, config.policy.diffusers
    clip = Clip(diffusers.train_frames, diffusers.fps, data.short_clips) if config.modality == "video" else None
    return View(sizes(config), clip, colour(data.alpha_colour))


def colour(text: str) -> Colour:
    """Red, green and blue of "#rrggbb"."""
    red, green, blue = bytes.fromhex(text.removeprefix("#"))
    return red, green, blue
