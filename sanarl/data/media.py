"""One decoder for every picture file, and the crop that never stretches."""

import io
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError
from torch import Tensor

from sanarl.data.buckets import Size, nearest
from sanarl.errors import UserError

# By content, not by name: PIL would start Ghostscript for a PostScript file that is called .png.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "TIFF", "GIF", "PPM")
ANIMATED = ("GIF", "PNG", "WEBP")  # other formats' further frames are pages, previews or depth maps
WHITE = (255, 255, 255)
MAX_PIXELS = 89_478_485  # PIL warns of a decompression bomb above this; we refuse

Colour = tuple[int, int, int]

_log = logging.getLogger(__name__)


class Animation(UserError):
    """A picture file that moves."""


def decode_image(path: str | Path, background: Colour = WHITE) -> Tensor:
    """Read a picture as sRGB.

    EXIF orientation is applied; an embedded colour profile is converted to sRGB; transparency is laid over
    ``background``; 16-bit, 32-bit integer and float pictures are scaled, not clipped; of several pages the first is
    read.
    A profile that does not fit the picture or an unreadable EXIF block is ignored with a warning in the log, as
    browsers do.

    Args:
        path: A JPEG, PNG, WebP, BMP, TIFF, GIF or PPM file; its content decides, not its name.
        background: What shows through transparency: red, green, blue of 0 to 255.

    Returns:
        float32 (3, H, W) in [0, 1].

    Raises:
        Animation: If it is an animation.
        UserError: If the file is missing, truncated, foreign or too large, naming it.
    """
    return _tensor(_open(Path(path), background))


def examine(path: str | Path) -> Size:
    """Decode a picture and keep nothing of it but its (height, width), upright.

    Raises:
        As decode_image.
    """
    rgb = _open(Path(path), WHITE)
    return rgb.shape[:2] if isinstance(rgb, np.ndarray) else (rgb.height, rgb.width)


def decode_cropped(path: str | Path, sizes: Sequence[Size], background: Colour = WHITE) -> Tensor:
    """Read a picture as ``decode_image`` does and crop it as ``cover_crop`` does to the size of the nearest aspect.

    Returns:
        (3, height, width): uint8 of an opaque 8-bit picture, which then costs little more than decoding; float32 in
        [0, 1] of any other.

    Raises:
        As decode_image.
    """
    rgb = _open(Path(path), background)
    if isinstance(rgb, np.ndarray):
        media = _tensor(rgb)[None]
        return cover_crop(media, nearest(*media.shape[2:], sizes=sizes))[0]
    return planes(crop_rgb(rgb, sizes))


def crop_rgb(rgb: Image.Image, sizes: Sequence[Size]) -> Image.Image:
    """Crop an RGB picture as ``cover_crop`` does to the size of the nearest aspect."""
    height, width = nearest(rgb.height, rgb.width, sizes)
    if (rgb.height, rgb.width) != (height, width):
        box = _box(rgb.height, rgb.width, height, width)
        return rgb.resize((width, height), Image.Resampling.BICUBIC, box)
    return rgb


def planes(rgb: Image.Image, out: Tensor | None = None) -> Tensor:
    """uint8 (3, H, W) of an RGB picture, into ``out`` where it is given.

    Band by band, which takes a third of the time of the whole at once.
    """
    out = torch.empty((3, rgb.height, rgb.width), dtype=torch.uint8) if out is None else out
    for plane, band in zip(out.numpy(), rgb.split(), strict=True):
        plane[:] = np.asarray(band)
    return out


def _tensor(rgb: Image.Image | NDArray[np.float32]) -> Tensor:
    """(3, H, W) in [0, 1] of an RGB picture or an array (H, W, 3)."""
    if isinstance(rgb, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(rgb.transpose(2, 0, 1), dtype=np.float32))
    return planes(rgb).div(255)


def _open(path: Path, background: Colour) -> Image.Image | NDArray[np.float32]:
    """An opaque 8-bit picture as it is, in RGB; any other as an array (H, W, 3) in [0, 1]."""
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing" if not path.exists() else "something that is not a file"
        raise UserError(f"{path}: found {found}; accepted: a picture file")
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise _too_large(path, f"{image.width} x {image.height} pixels")
            frames = getattr(image, "n_frames", 1) if image.format in ANIMATED else 1
            if frames > 1:
                raise Animation(f"{path}: found an animation of {frames} frames; accepted: a still picture")
            image.load()
            return _to_rgb(_upright(image, path), path, background)
    except UserError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(path, "a picture that large or compressed that hard") from error
    except UnidentifiedImageError as error:
        found = "an empty file" if path.stat().st_size == 0 else "content that is no picture that can be read here"
        raise UserError(f"{path}: found {found}; accepted: {', '.join(FORMATS)}") from error
    except Exception as error:  # PIL raises many types on damaged files
        raise UserError(f"{path}: cannot be decoded: {error or type(error).__name__}") from error


def _too_large(path: Path, found: str) -> UserError:
    return UserError(f"{path}: found {found}; accepted: at most {MAX_PIXELS} pixels: make it smaller first")


def _upright(image: Image.Image, path: Path) -> Image.Image:
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except Exception as error:  # the picture itself was read
        _log.warning("%s: its EXIF block cannot be read and is ignored: %s", path, error)
    return image


def _to_rgb(image: Image.Image, path: Path, background: Colour) -> Image.Image | NDArray[np.float32]:
    """See _open, of a loaded picture of any mode."""
    if image.mode == "F" or image.mode.startswith("I"):
        return _deep(image, path, background)
    if image.mode == "LAB":
        srgb, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
        converted = ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB")
        assert converted is not None, "only in-place conversion gives none"
        return converted
    profile = image.info.get("icc_profile")
    alpha = None
    if image.has_transparency_data:
        grey = image.mode in ("1", "L", "LA")
        image = image.convert("RGBA")
        alpha = np.asarray(image.getchannel("A"), np.float32)[..., None] / np.float32(255)
        image = image.convert("L" if grey else "RGB")  # drops alpha without blending
    elif image.mode not in ("L", "RGB", "CMYK"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    if profile:
        image = _to_srgb(image, profile, path)
    image = image if image.mode == "RGB" else image.convert("RGB")
    if alpha is None:
        return image
    return np.asarray(image, np.float32) / np.float32(255) * alpha + _unit(background) * (1 - alpha)


def _unit(colour: Colour) -> NDArray[np.float32]:
    return np.asarray(colour, np.float32) / np.float32(255)


def _to_srgb(image: Image.Image, profile: bytes, path: Path) -> Image.Image:
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        srgb = ImageCms.createProfile("sRGB")
        if image.mode == "L" and source.profile.xcolor_space.strip() == "RGB":
            image = image.convert("RGB")
        converted = ImageCms.profileToProfile(image, source, srgb, outputMode="RGB")
    except (ImageCms.PyCMSError, OSError, ValueError) as error:
        _log.warning("%s: its colour profile does not fit mode %s and is ignored: %s", path, image.mode, error)
        return image
    assert converted is not None
    return converted


def _deep(image: Image.Image, path: Path, background: Colour) -> NDArray[np.float32]:
    """Grey pictures of more than 8 bits: 16-bit, 32-bit integer, float."""
    values = np.asarray(image)
    if image.mode == "F":
        if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1):
            found = f"floating-point values from {values.min():g} to {values.max():g}"
            raise UserError(f"{path}: found {found}; accepted: values in [0, 1]")
        grey = values.astype(np.float32)
    elif image.mode == "I":
        # 16-bit data in a 32-bit box is common; a picture that goes beyond it is taken at its full range.
        if values.min() < 0:
            raise UserError(f"{path}: found negative values (down to {values.min()}); accepted: unsigned integers")
        grey = (values / (65535 if values.max() <= 65535 else 2**31 - 1)).astype(np.float32)
    else:
        grey = values.astype(np.float32) / np.float32(65535)
    transparent = image.info.get("transparency")  # one grey value, PNG's tRNS
    rgb = np.repeat(grey[..., None], 3, axis=2)
    if isinstance(transparent, int):
        rgb[values == transparent] = _unit(background)
    return rgb


def cover_crop(media: Tensor, size: tuple[int, int]) -> Tensor:
    """Scale until a picture covers the size, and cut the centre out: never stretched, antialiased (bicubic).

    The largest centred box of the target's aspect is taken to a fraction of a pixel and scaled once.

    Args:
        media: (F, 3, H, W) in [0, 1].
        size: The (height, width) wanted.

    Returns:
        float32 (F, 3, height, width) in [0, 1].
    """
    height, width = size
    h, w = media.shape[-2:]
    if (h, w) == (height, width):
        return media.to(torch.float32)
    box = _box(h, w, height, width)
    planes = media.detach().to("cpu", torch.float32).reshape(-1, h, w).contiguous().numpy()
    resized = [
        np.asarray(Image.fromarray(plane).resize((width, height), Image.Resampling.BICUBIC, box)) for plane in planes
    ]
    out = torch.from_numpy(np.stack(resized)).reshape(*media.shape[:-2], height, width)
    return out.clamp_(0, 1)  # bicubic overshoots at edges


def _box(h: int, w: int, height: int, width: int) -> tuple[float, float, float, float]:
    """The largest centred box of the aspect height : width in a picture of h x w: left, upper, right, lower."""
    scale = max(height / h, width / w)
    box_h, box_w = min(h, height / scale), min(w, width / scale)
    return (w - box_w) / 2, (h - box_h) / 2, (w + box_w) / 2, (h + box_h) / 2
