"""Reference: the frames, stamps and colours that were written, and the frame that a player shows at time k / fps."""

import random
import struct
import time
import weakref

import av
import pytest
import torch
from clips import numbers, write

from sanarl.data.media import planes
from sanarl.data.video import Clip, ShortClip, clip_pictures, decode_clip, examine_clip, probe
from sanarl.errors import UserError


def page(call, *arguments, kind=UserError):
    with pytest.raises(kind) as caught:
        call(*arguments)
    return str(caught.value)


def shown(stamps, fps, clip):
    """The number of the frame on screen at every k / clip.fps."""
    times = [k / clip.fps for k in range(clip.frames)]
    return [max(i for i, stamp in enumerate(stamps) if stamp / fps <= t + 1e-6) for t in times]


@pytest.mark.parametrize(
    ("name", "codec"),
    [("a.mp4", "libx264"), ("a.mov", "libx264"), ("a.mkv", "libx264"), ("a.webm", "libvpx-vp9"), ("b.mp4", "mpeg4")],
)
def test_containers(tmp_path, name, codec):
    path = write(tmp_path / name, 20, codec=codec)
    media = decode_clip(path, Clip(9, 30))
    assert media.shape == (9, 3, 48, 64)
    assert media.dtype == torch.uint8
    assert numbers(media) == list(range(9))
    assert probe(path).frames == 20


@pytest.mark.parametrize("target", [8, 10, 16, 23.976, 24, 25, 30, 50, 60])
@pytest.mark.parametrize("fps", [24, 25, 30, 60])
def test_frames_are_taken_by_time(tmp_path, fps, target):
    path = write(tmp_path / "a.mp4", 45, fps=fps, size=(32, 32))
    clip = Clip(5, target)
    assert numbers(decode_clip(path, clip)) == shown(range(45), fps, clip)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
@pytest.mark.parametrize("seed", range(3))
def test_a_variable_rate_is_followed(tmp_path, name, seed):
    rng = random.Random(seed)
    stamps = [0]
    while len(stamps) < 40:
        stamps.append(stamps[-1] + rng.choice([1, 1, 2, 7, 30]))
    path = write(tmp_path / name, stamps, fps=100)
    clip = Clip(9, 20)
    assert numbers(decode_clip(path, clip)) == shown(stamps, 100, clip)


@pytest.mark.parametrize("fps", [24, 30, 48])
def test_a_second_is_a_second_at_any_rate(tmp_path, fps):
    """Of 17 frames at 16 fps the last is the one that is shown after a second, whatever the source's rate."""
    media = decode_clip(write(tmp_path / "a.mp4", fps + 3, fps=fps, size=(32, 32)), Clip(17, 16))
    assert numbers(media)[-1] == fps


def test_stamps_that_do_not_begin_at_zero(tmp_path):
    path = write(tmp_path / "a.mkv", [50 + i for i in range(20)], fps=25)
    assert numbers(decode_clip(path, Clip(5, 25))) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("rotation", "corner"), [(0, (0, 0)), (90, (-1, 0)), (180, (-1, -1)), (-90, (0, -1))])
def test_rotation_is_honoured(tmp_path, rotation, corner):
    """A quarter turn anticlockwise brings the top left corner to the bottom left."""
    path = write(tmp_path / "a.mp4", 3, rotation=rotation)
    media = decode_clip(path, Clip(1, 30))
    upright = rotation % 180 == 0
    assert media.shape[2:] == ((48, 64) if upright else (64, 48))
    corners = {(y, x): media[0, 0, y, x] > 0.8 for y in (0, -1) for x in (0, -1)}
    assert [at for at, red in corners.items() if red] == [corner]
    assert (probe(path).height, probe(path).width) == tuple(media.shape[2:])


def test_pixels_that_are_not_square_are_shown_in_their_shape(tmp_path):
    path = write(tmp_path / "a.mp4", 3, size=(48, 64), aspect="2/1")
    assert decode_clip(path, Clip(1, 30)).shape[2:] == (48, 128)
    assert (probe(path).height, probe(path).width) == (48, 128)


def test_media_are_cropped_to_the_nearest_size_never_stretched(tmp_path):
    path = write(tmp_path / "a.mp4", 5, size=(64, 96))
    assert decode_clip(path, Clip(5, 30), ((32, 32),)).shape == (5, 3, 32, 32)
    assert decode_clip(path, Clip(1, 30), ((64, 32), (32, 64), (32, 32))).shape == (1, 3, 32, 64)
    square = decode_clip(path, Clip(1, 30), ((64, 64),))
    assert (square[0, 0, 0] > 0.8).sum() == 48 - 16  # the red half of 48 columns lost 16 to the crop


@pytest.mark.parametrize(
    ("short", "expected"),
    [("loop", [0, 1, 2, 3, 4, 0, 1, 2, 3]), ("pad", [0, 1, 2, 3, 4, 4, 4, 4, 4]), ("error", None), ("skip", None)],
)
def test_short_videos(tmp_path, short, expected):
    path = write(tmp_path / "a.mp4", 5, fps=10)
    if expected is not None:
        assert numbers(decode_clip(path, Clip(9, 10, short))) == expected
        return
    text = page(decode_clip, path, Clip(9, 10, short), kind=ShortClip)
    assert text == f"{path}: found 0.500 s, which is 5 frames at 10 fps; accepted: more than 0.800 s (9 frames)"


def test_a_video_of_one_frame_that_lasts_for_no_time(tmp_path):
    path = write(tmp_path / "a.mkv", 1, fps=1000)
    assert numbers(decode_clip(path, Clip(5, 10, "loop"))) == [0] * 5
    assert numbers(decode_clip(path, Clip(5, 10, "pad"))) == [0] * 5


@pytest.mark.parametrize("short", ["error", "loop", "pad"])
def test_frames_come_one_by_one(tmp_path, short):
    """Pictures live no longer than they are looked at, also where a clip plays again; they are those of the clip."""
    path = write(tmp_path / "a.mp4", 40 if short == "error" else 12, fps=10)
    clip, alive, shown_pictures = Clip(33, 10, short), [], []
    for picture in clip_pictures(path, clip):
        alive.append(weakref.ref(picture))
        shown_pictures.append(planes(picture))
        assert sum(one() is not None for one in alive[:-1] if one() is not picture) <= 1
    assert torch.equal(torch.stack(shown_pictures), decode_clip(path, clip))


def test_a_video_of_just_the_length_is_long_enough(tmp_path):
    for n in (5, 9, 41):
        path = write(tmp_path / "a.mp4", n, fps=16, size=(32, 32))
        assert len(decode_clip(path, Clip(n, 16))) == n
        page(decode_clip, path, Clip(n + 4, 16), kind=ShortClip)


def claim(path, count):
    """Let the container of an mp4 say that it has ``count`` frames of the same size, by its stts and stsz boxes."""
    data = bytearray(path.read_bytes())
    at = data.index(b"stts") + 4
    data[at + 8 : at + 12] = struct.pack(">I", count)
    path.write_bytes(data)


def test_a_container_that_claims_more_than_it_holds(tmp_path):
    path = write(tmp_path / "a.mp4", 12, fps=10)
    data = path.read_bytes()
    mdat = data.index(b"mdat")
    for cut in (0.5, 0.8):  # an index at the end would be lost as well: move nothing, only blank what was written last
        end = data.index(b"moov") - 4
        keep = mdat + int((end - mdat) * cut)
        path.write_bytes(data[:keep] + bytes(end - keep) + data[end:])
        assert probe_or_fault(path)
    claim(path, 400)
    assert probe_or_fault(path)


def probe_or_fault(path):
    """A count that is no more than what is there, or a page; never a wrong count."""
    try:
        return probe(path).frames <= 12
    except UserError as error:
        return str(path) in str(error)


def test_a_live_container_without_count_is_counted(tmp_path):
    found = probe(write(tmp_path / "a.mkv", 12, fps=10))
    assert (found.frames, found.claimed, found.seconds) == (12, 0, pytest.approx(1.2, abs=1e-3))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "found an empty file; accepted: a video"),
        (b"<html>", "cannot be decoded"),
        (b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n/etc/passwd\n", "cannot be decoded"),
        (b"ffconcat version 1.0\nfile '/etc/passwd'\n", "cannot be decoded"),
        (b"RIFF\0\0\0\0AVI LIST", "cannot be decoded"),
        (b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", "cannot be decoded"),
        (b"\x1a\x45\xdf\xa3" * 50, "cannot be decoded"),
    ],
)
def test_foreign_content_is_named(tmp_path, content, expected):
    (tmp_path / "a.mp4").write_bytes(content)
    for call in (lambda path: decode_clip(path, Clip(1, 16)), probe):
        text = page(call, tmp_path / "a.mp4")
        assert text.startswith(f"{tmp_path}/a.mp4: {expected}")


def test_missing_files_and_sound_alone(tmp_path):
    import numpy as np

    assert "found nothing; accepted: a video file" in page(probe, tmp_path / "no.mp4")
    assert "found a folder; accepted: a video file" in page(probe, tmp_path)
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate, frame.pts = 8000, 0
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert "found no video in it" in page(probe, tmp_path / "a.mp4")


def test_names_that_look_like_addresses_and_patterns(tmp_path):
    write(tmp_path / "plain.mp4", 3)
    for name in ("http:x.mp4", "concat:a|b.mp4", "%03d.mp4", "[set] a*.mp4", "漢字 🎬.mp4"):
        (tmp_path / name).write_bytes((tmp_path / "plain.mp4").read_bytes())
        assert probe(tmp_path / name).frames == 3


@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "libx264"), ("a.mkv", "libx264")])
def test_damaged_bytes_give_a_clip_or_a_page(tmp_path, name, codec):
    """No other exception, no endless loop, no more memory than the clip."""
    path = write(tmp_path / name, 12, size=(32, 32), codec=codec)
    whole = path.read_bytes()
    rng = random.Random(name)
    started = time.monotonic()
    for _ in range(60):
        data = bytearray(whole)
        if rng.random() < 0.4:
            data = data[: rng.randrange(len(data))]
        else:
            for _ in range(rng.choice([1, 4, 40])):
                data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        for call in (lambda p: decode_clip(p, Clip(5, 30, "pad")), probe):
            try:
                call(path)
            except UserError as error:
                assert str(path) in str(error)  # noqa: PT017  # both outcomes are right
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("short", ["error", "pad"])
def test_examining_says_what_reading_finds(tmp_path, short):
    for name, frames, rotation in (("a", 9, None), ("b", 9, 90), ("c", 3, None)):
        path = write(tmp_path / f"{name}.mp4", frames, rotation=rotation)
        clip = Clip(5, 30, short)
        if frames < 5 and short == "error":
            assert page(examine_clip, path, clip, kind=ShortClip) == page(decode_clip, path, clip, kind=ShortClip)
        else:
            assert examine_clip(path, clip) == tuple(decode_clip(path, clip).shape[2:])


def test_frames_that_change_their_size(tmp_path):
    """VP9 carries its size in every key frame, so two videos one after the other in a file are one that changes."""
    pieces = [
        write(tmp_path / f"{i}.webm", 6, size=size, codec="libvpx-vp9") for i, size in enumerate([(48, 64), (64, 48)])
    ]
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as out:
        stream = None
        for number, piece in enumerate(pieces):
            with av.open(str(piece)) as source:
                stream = stream or out.add_stream_from_template(source.streams.video[0])
                for packet in source.demux(video=0):
                    if packet.pts is not None:
                        packet.pts = packet.dts = packet.pts + number * 200  # ticks of a millisecond
                        packet.stream = stream
                        out.mux(packet)
    assert examine_clip(path, Clip(5, 30)) == (48, 64)
    for call in (examine_clip, decode_clip):
        assert "its frames change their size" in page(call, path, Clip(9, 30))
    assert decode_clip(path, Clip(9, 30), ((32, 32),)).shape == (9, 3, 32, 32)
    assert "its frames change their size" in page(decode_clip, path, Clip(9, 30), ((32, 64), (64, 32)))
