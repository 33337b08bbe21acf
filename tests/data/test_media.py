"""Reference: the colours that were written into the files."""

import contextlib
import io
import logging
import random
import struct
import zlib
from fractions import Fraction

import av
import numpy as np
import pytest
import torch
from PIL import Image, ImageCms, ImageDraw, ImageFilter, ImageOps

from sanarl.data.media import Animation, cover_crop, decode_cropped, decode_image
from sanarl.errors import UserError
from sanarl.types import unit

RED = (200, 40, 20)


def save(tmp_path, image, name, **options):
    path = tmp_path / name
    image.save(path, **options)
    return path


def colour(path, x=2, y=2):
    """8-bit colour of one pixel as decoded."""
    picture = decode_image(path)
    assert picture.dtype == torch.float32
    assert picture.shape[0] == 3
    assert picture.min() >= 0
    assert picture.max() <= 1
    return tuple((picture[:, y, x] * 255).tolist())


def near(found, expected, tolerance=0.01):
    return found == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [("a.png", 0.01), ("a.bmp", 0.01), ("a.tiff", 0.01), ("a.webp", 6), ("a.jpg", 6), ("a.gif", 0.01)],
)
def test_rgb_in_every_format(tmp_path, name, tolerance):
    assert near(colour(save(tmp_path, Image.new("RGB", (8, 6), RED), name)), RED, tolerance)


def test_shape_is_channels_height_width(tmp_path):
    assert decode_image(save(tmp_path, Image.new("RGB", (8, 6), RED), "a.png")).shape == (3, 6, 8)


def test_content_decides_and_not_the_name(tmp_path):
    Image.new("RGB", (8, 6), RED).save(tmp_path / "a.jpg", format="PNG")
    assert near(colour(tmp_path / "a.jpg"), RED)


@pytest.mark.parametrize(
    ("mode", "fill", "expected"),
    [
        ("L", 100, (100, 100, 100)),
        ("1", 1, (255, 255, 255)),
        ("1", 0, (0, 0, 0)),
        ("LA", (100, 255), (100, 100, 100)),
        ("LA", (0, 102), (153, 153, 153)),  # 255 * (1 - 0.4)
        ("RGBA", (*RED, 255), RED),
        ("RGBA", (200, 40, 20, 51), (244, 212, 208)),  # 0.2 * colour + 0.8 * 255
        ("RGBA", (0, 0, 0, 0), (255, 255, 255)),
        ("I;16", 32768, (127.5, 127.5, 127.5)),
        ("I;16", 65535, (255, 255, 255)),
    ],
)
def test_png_modes(tmp_path, mode, fill, expected):
    assert near(colour(save(tmp_path, Image.new(mode, (8, 6), fill), "a.png")), expected)


@pytest.mark.parametrize(
    ("mode", "fill", "expected"),
    [
        ("I;16", 16384, (63.75,) * 3),
        ("I;16B", 16384, (63.75,) * 3),
        ("I", 32768, (127.5,) * 3),
        ("I", 2**30, (127.5,) * 3),
        ("F", 0.25, (63.75,) * 3),
        ("CMYK", (0, 204, 255, 0), (255, 51, 0)),
        ("RGBA", (0, 0, 0, 0), (255, 255, 255)),
        ("LAB", (255, 128, 128), (255, 255, 255)),
        ("P", 0, (0, 0, 0)),
    ],
)
def test_tiff_modes(tmp_path, mode, fill, expected):
    assert near(colour(save(tmp_path, Image.new(mode, (8, 6), fill), "a.tiff")), expected, 1.01)


@pytest.mark.parametrize(
    ("codec", "layout", "fill", "expected"),
    [
        ("png", "rgb48be", (65535, 16384, 32768), (255, 64, 128)),
        ("png", "rgba64be", (65535, 16384, 32768, 65535), (255, 64, 128)),
        ("png", "rgba64be", (65535, 16384, 32768, 13107), (255, 217, 230)),  # 0.2 * colour + 0.8 * 255
        ("png", "ya16be", (16384, 65535), (64, 64, 64)),
        ("tiff", "rgb48le", (65535, 16384, 32768), (255, 64, 128)),
        ("tiff", "rgba64le", (65535, 16384, 32768, 0), (255, 255, 255)),
    ],
)
def test_colours_of_16_bits_are_scaled_and_not_clipped(tmp_path, codec, layout, fill, expected):
    """Written by ffmpeg, as PIL writes no such files."""
    pixels = np.broadcast_to(np.array(fill, np.uint16), (6, 8, len(fill)))
    order = ">u2" if layout.endswith("be") else "<u2"
    frame = av.VideoFrame(8, 6, layout)
    plane = frame.planes[0]
    rows = np.zeros((6, plane.line_size), np.uint8)
    rows[:, : 16 * len(fill)] = np.frombuffer(pixels.astype(order).tobytes(), np.uint8).reshape(6, -1)
    plane.update(rows.tobytes())
    encoder = av.CodecContext.create(codec, "w")
    encoder.width, encoder.height, encoder.pix_fmt, encoder.time_base = 8, 6, layout, Fraction(1, 25)
    (tmp_path / f"a.{codec}").write_bytes(b"".join(bytes(p) for p in [*encoder.encode(frame), *encoder.encode(None)]))
    assert near(colour(tmp_path / f"a.{codec}"), expected, 1.01)


def test_cmyk_jpeg(tmp_path):
    path = save(tmp_path, Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "a.jpg", quality=100)
    assert near(colour(path), (255, 0, 0), 3)


def palette_image(transparent=None):
    image = Image.new("P", (8, 6), 1)
    image.putpalette([10, 20, 30, *RED] + [0] * 762)
    image.putpixel((2, 2), 0)
    if transparent is not None:
        image.info["transparency"] = transparent
    return image


@pytest.mark.parametrize("name", ["a.png", "a.gif"])
def test_palette(tmp_path, name):
    path = save(tmp_path, palette_image(), name)
    assert near(colour(path), (10, 20, 30))
    assert near(colour(path, 5, 5), RED)


def test_palette_with_one_transparent_colour(tmp_path):
    path = save(tmp_path, palette_image(), "a.png", transparency=0)
    assert near(colour(path), (255, 255, 255))
    assert near(colour(path, 5, 5), RED)


def test_palette_with_an_alpha_for_each_colour(tmp_path):
    path = save(tmp_path, palette_image(), "a.png", transparency=bytes([0, 51]))
    assert near(colour(path), (255, 255, 255))
    assert near(colour(path, 5, 5), (244, 212, 208))


@pytest.mark.parametrize(("mode", "fill", "key"), [("RGB", RED, RED), ("L", 7, 7), ("I;16", 7, 7)])
def test_a_transparent_key_colour(tmp_path, mode, fill, key):
    assert near(colour(save(tmp_path, Image.new(mode, (8, 6), fill), "a.png", transparency=key)), (255, 255, 255))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.tiff", "a.webp"])
def test_exif_orientation(tmp_path, orientation, name):
    """Reference: the stored picture turned back by the inverse of what the EXIF standard says of each value."""
    upright = Image.new("RGB", (40, 24), (255, 255, 255))
    ImageDraw.Draw(upright).rectangle((0, 0, 15, 9), fill=(255, 0, 0))
    ImageDraw.Draw(upright).rectangle((24, 0, 39, 9), fill=(0, 0, 255))
    T = Image.Transpose
    store = {2: T.FLIP_LEFT_RIGHT, 3: T.ROTATE_180, 4: T.FLIP_TOP_BOTTOM, 5: T.TRANSPOSE, 6: T.ROTATE_90}
    store |= {7: T.TRANSVERSE, 8: T.ROTATE_270}
    stored = upright.transpose(store[orientation]) if orientation in store else upright
    exif = Image.Exif()
    exif[274] = orientation
    path = save(tmp_path, stored, name, exif=exif)
    assert decode_image(path).shape == (3, 24, 40)
    assert near(colour(path, 4, 3), (255, 0, 0), 10)
    assert near(colour(path, 35, 3), (0, 0, 255), 10)
    assert near(colour(path, 4, 20), (255, 255, 255), 10)


def linear_profile(space):
    """A minimal ICC version 2 profile of gamma 1: matrix RGB with sRGB's primaries (D50), or grey."""

    def s15(*values):
        return b"".join(struct.pack(">i", round(v * 65536)) for v in values)

    xyz = {
        b"wtpt": (0.9642, 1.0, 0.8249),
        b"rXYZ": (0.4360747, 0.2225045, 0.0139322),
        b"gXYZ": (0.3850649, 0.7168786, 0.0971045),
        b"bXYZ": (0.1430804, 0.0606169, 0.7141733),
    }
    names = [b"wtpt"] if space == b"GRAY" else list(xyz)
    tags = {name: b"XYZ \0\0\0\0" + s15(*xyz[name]) for name in names}
    curve = b"curv\0\0\0\0" + struct.pack(">I", 0)
    tags |= {name: curve for name in ([b"kTRC"] if space == b"GRAY" else [b"rTRC", b"gTRC", b"bTRC"])}
    tags[b"desc"] = b"desc\0\0\0\0" + struct.pack(">I", 7) + b"linear\0" + b"\0" * 79
    tags[b"cprt"] = b"text\0\0\0\0none\0\0\0\0"
    table, data, offset = b"", b"", 128 + 4 + 12 * len(tags)
    for name, value in tags.items():
        value += b"\0" * (-len(value) % 4)
        table += name + struct.pack(">II", offset + len(data), len(value))
        data += value
    body = struct.pack(">I", len(tags)) + table + data
    head = struct.pack(">I4sI4s4s4s", 128 + len(body), b"\0\0\0\0", 0x02100000, b"mntr", space, b"XYZ ")
    head += b"\0" * 12 + b"acsp" + b"\0" * 28 + s15(0.9642, 1.0, 0.8249)
    return head + b"\0" * (128 - len(head)) + body


def srgb(linear):
    """The transfer curve of IEC 61966-2-1."""
    return 255 * (12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055)


@pytest.mark.parametrize(
    ("mode", "fill", "space"),
    [
        ("RGB", (128, 64, 32), b"RGB "),
        ("RGBA", (128, 64, 32, 255), b"RGB "),
        ("L", 64, b"GRAY"),
        ("L", 64, b"RGB "),
        ("LA", (64, 255), b"GRAY"),
    ],
)
def test_a_profile_is_converted_to_srgb(tmp_path, mode, fill, space):
    values = fill[:3] if mode.startswith("RGB") else (fill if isinstance(fill, int) else fill[0],) * 3
    path = save(tmp_path, Image.new(mode, (8, 6), fill), "a.png", icc_profile=linear_profile(space))
    assert near(colour(path), [srgb(v / 255) for v in values], 1.5)


def test_alpha_is_not_run_through_the_profile(tmp_path):
    image = Image.new("RGBA", (8, 6), (0, 0, 0, 51))
    path = save(tmp_path, image, "a.png", icc_profile=linear_profile(b"RGB "))
    assert near(colour(path), (204, 204, 204), 1)


def test_an_srgb_profile_changes_nothing(tmp_path):
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert near(colour(save(tmp_path, Image.new("RGB", (8, 6), RED), "a.png", icc_profile=profile)), RED, 1.01)


@pytest.mark.parametrize("profile", [b"nonsense", linear_profile(b"GRAY")])
def test_a_profile_that_does_not_fit_is_ignored_aloud(tmp_path, caplog, profile):
    path = save(tmp_path, Image.new("RGB", (8, 6), RED), "a.png", icc_profile=profile)
    with caplog.at_level(logging.WARNING):
        assert near(colour(path), RED)
    assert "a.png: its colour profile" in caplog.text


def test_the_first_page_of_several_is_read(tmp_path):
    first, second = Image.new("RGB", (8, 6), RED), Image.new("RGB", (8, 6), (0, 0, 0))
    assert near(colour(save(tmp_path, first, "a.tiff", save_all=True, append_images=[second])), RED)


@pytest.mark.parametrize("name", ["a.gif", "a.png", "a.webp"])
def test_animations_are_told_from_pictures(tmp_path, name):
    first, second = Image.new("RGB", (8, 6), RED), Image.new("RGB", (8, 6), (0, 0, 0))
    path = save(tmp_path, first, name, save_all=True, append_images=[second, first], duration=40)
    with pytest.raises(Animation, match="found an animation of 3 frames; accepted: a still picture"):
        decode_image(path)


@pytest.mark.parametrize("background", [(255, 255, 255), (0, 0, 0), (10, 200, 90)])
def test_what_shows_through_can_be_chosen(tmp_path, background):
    """Reference: alpha * colour + (1 - alpha) * background, and all of it for a key colour."""
    path = save(tmp_path, Image.new("RGBA", (8, 6), (*RED, 51)), "a.png")
    picture = decode_image(path, background)
    expected = [0.2 * c + 0.8 * b for c, b in zip(RED, background, strict=True)]
    assert near(tuple((picture[:, 2, 2] * 255).tolist()), expected)
    deep = Image.fromarray(np.full((6, 8), 300, np.uint16))
    picture = decode_image(save(tmp_path, deep, "b.png", transparency=300), background)
    assert near(tuple((picture[:, 2, 2] * 255).tolist()), background)


# ------------------------------------------------------------------ files that are no pictures


def refused(path):
    with pytest.raises(UserError) as caught:
        decode_image(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.bmp", "a.tiff"])
def test_truncated_files_are_named(tmp_path, name):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    path = save(tmp_path, noise, name)
    data = path.read_bytes()
    for keep in (len(data) // 2, 20, 3):
        path.write_bytes(data[:keep])
        refused(path)


def test_foreign_missing_and_empty_files(tmp_path):
    (tmp_path / "a.jpg").write_text("<html>404</html>")
    assert "no picture" in refused(tmp_path / "a.jpg")
    (tmp_path / "b.jpg").write_bytes(b"")
    assert "an empty file" in refused(tmp_path / "b.jpg")
    assert "found nothing" in refused(tmp_path / "c.jpg")
    assert "a folder" in refused(tmp_path)


def test_a_kind_of_picture_that_is_not_read(tmp_path):
    """A TIFF of one floating-point RGB pixel, written by hand."""
    at = 8 + 2 + 9 * 12 + 4  # behind the header and nine entries
    entries = [(256, 4, 1, 1), (257, 4, 1, 1), (258, 3, 3, at), (259, 3, 1, 1), (262, 3, 1, 2), (273, 4, 1, at + 12)]
    entries += [(277, 3, 1, 3), (279, 4, 1, 12), (339, 3, 3, at + 6)]
    directory = struct.pack("<H", 9) + b"".join(struct.pack("<HHII", *entry) for entry in entries) + b"\0" * 4
    data = struct.pack("<6H3f", 32, 32, 32, 3, 3, 3, 0.5, 0.25, 1.0)
    (tmp_path / "a.tif").write_bytes(b"II*\0" + struct.pack("<I", 8) + directory + data)
    with pytest.raises(UserError, match=r"a\.tif: found content that is no picture that can be read here"):
        decode_image(tmp_path / "a.tif")


def test_postscript_under_another_name_never_reaches_an_interpreter(tmp_path):
    (tmp_path / "a.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n")
    assert "no picture" in refused(tmp_path / "a.png")


def png_header(width, height):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [10_000, 60_000])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_decompression_bombs_are_refused(tmp_path, side):
    (tmp_path / "a.png").write_bytes(png_header(side, side))
    assert "at most 89478485 pixels" in refused(tmp_path / "a.png")


def test_a_limit_that_was_lifted_elsewhere_still_holds_here(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    (tmp_path / "a.png").write_bytes(png_header(10_000, 10_000))
    assert "found 10000 x 10000 pixels" in refused(tmp_path / "a.png")


def test_float_pictures_outside_the_range_are_refused(tmp_path):
    assert "accepted: values in [0, 1]" in refused(save(tmp_path, Image.new("F", (4, 4), 200.0), "a.tiff"))
    assert "negative values" in refused(save(tmp_path, Image.new("I", (4, 4), -5), "b.tiff"))


@pytest.mark.filterwarnings("ignore")  # PIL warns of much that it survives
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.bmp", "a.tiff", "a.gif"])
def test_damaged_bytes_give_a_picture_or_a_page(tmp_path, name):
    """Nothing but UserError leaves the decoder, whatever the bytes are."""
    rng = random.Random(name)
    exif = Image.Exif()
    exif[274] = 6
    options = {"exif": exif} if name not in ("a.gif", "a.bmp") else {}
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8))
    buffer = io.BytesIO()
    noise.save(buffer, format={"jpg": "JPEG", "tiff": "TIFF"}.get(name[2:], name[2:].upper()), **options)
    path = tmp_path / name
    for _ in range(150):
        data = bytearray(buffer.getvalue())
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(min(len(data), rng.choice([40, 400, 4000])))] = rng.randrange(256)
        path.write_bytes(data)
        with contextlib.suppress(UserError):
            assert torch.isfinite(decode_image(path)).all()


# ------------------------------------------------------------------ cover_crop


def test_the_size_asked_for_is_the_size_given():
    for h, w, size in [(10, 20, (8, 8)), (20, 10, (8, 8)), (3, 500, (32, 64)), (64, 48, (480, 832)), (1, 1, (5, 7))]:
        out = cover_crop(torch.rand(2, 3, h, w), size)
        assert out.shape == (2, 3, *size)
        assert out.dtype == torch.float32
        assert out.min() >= 0
        assert out.max() <= 1


def test_nothing_is_stretched():
    """A circle stays one: its extent across and down agree, whatever the aspect of the picture."""
    for h, w in [(300, 200), (200, 300), (211, 487)]:
        y, x = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")
        disc = (((x - w / 2) ** 2 + (y - h / 2) ** 2) < 60**2).float().expand(1, 3, h, w)
        out = cover_crop(disc, (96, 96))[0, 0]
        across, down = float(out[48].sum()), float(out[:, 48].sum())
        assert across == pytest.approx(down, abs=0.6)
        assert across == pytest.approx(2 * 60 * 96 / min(h, w), rel=0.02)


def test_the_centre_is_kept():
    ramp = torch.linspace(0, 1, 400).expand(1, 3, 100, 400)  # grey rises from left to right
    out = cover_crop(ramp, (50, 50))[0, 0, 25]
    assert float(out.mean()) == pytest.approx(0.5, abs=1e-3)
    assert float(out[0]) == pytest.approx(150.5 / 399, abs=3e-3)  # the middle 100 columns, halved
    assert float(out[-1]) == pytest.approx(248.5 / 399, abs=3e-3)


def test_a_fine_pattern_averages_out():
    """Antialiasing: a checkerboard of single pixels becomes grey instead of moire."""
    board = ((torch.arange(256)[:, None] + torch.arange(256)) % 2).float().expand(1, 3, 256, 256)
    out = cover_crop(board, (32, 32))
    assert (out - 0.5).abs().max() < 0.02


def test_flat_colours_and_equal_sizes_are_kept_exactly():
    flat = torch.tensor([0.2, 0.4, 0.6])[None, :, None, None].expand(1, 3, 37, 91)
    torch.testing.assert_close(cover_crop(flat, (16, 16)), flat[..., :16, :16].contiguous(), atol=1e-6, rtol=0)
    picture = torch.rand(1, 3, 8, 9)
    assert torch.equal(cover_crop(picture, (8, 9)), picture)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "I;16", "CMYK", "P"])
@pytest.mark.parametrize("size", [(32, 32), (20, 60), (100, 50), (45, 77)])
def test_cropping_while_reading_is_the_crop_of_what_is_read(tmp_path, mode, size):
    """Reference: decode_image, then cover_crop. 8-bit pictures are rounded after each of the two passes of scaling.

    The picture is smooth: where bicubic scaling overshoots, 8 bits clip it in between.
    """
    noise = Image.effect_noise((77, 45), 90).filter(ImageFilter.GaussianBlur(3))
    if mode == "I;16":
        noise = Image.fromarray(np.asarray(noise).astype(np.uint16) * 200)
    elif mode == "RGBA":
        noise = Image.merge("RGBA", [noise, noise.rotate(90), noise.rotate(180), noise.rotate(45)])
    elif mode != "L":
        noise = Image.merge("RGB", [noise, ImageOps.mirror(noise), noise.rotate(180)]).convert(mode)
    path = save(tmp_path, noise, "a.tiff" if mode == "CMYK" else "a.png")
    expected = cover_crop(decode_image(path)[None], size)[0]
    found = unit(decode_cropped(path, [size]))
    assert decode_cropped(path, [size]).dtype == (torch.float32 if mode in ("RGBA", "I;16") else torch.uint8)
    assert torch.allclose(found, expected, rtol=0, atol=0 if mode in ("RGBA", "I;16") else 1.5 / 255)
    assert torch.equal(unit(decode_cropped(path, [(45, 77)])), decode_image(path))
