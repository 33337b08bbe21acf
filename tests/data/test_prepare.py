"""Reference: what the sources were written with, and the same folder prepared another way."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from clips import numbers, write
from PIL import Image

from sanarl.data import prepare as module
from sanarl.data.folder import MediaFolder, View
from sanarl.data.inspection import sha256
from sanarl.data.prepare import Settings, prepare
from sanarl.data.prepared import manifest
from sanarl.data.video import Clip, probe
from sanarl.errors import UserError

COLOURS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (250, 250, 0), (9, 9, 9)]


def page(*arguments):
    with pytest.raises(UserError) as caught:
        prepare(*arguments)
    return str(caught.value)


@pytest.fixture
def src(tmp_path):
    folder = tmp_path / "src"
    for name, colour in zip(("a.b.PNG", "deep/c.jpg", "deep/[x] d.webp", "e.bmp"), COLOURS, strict=False):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (60, 40), colour).save(folder / name)
        (folder / name).with_suffix(".txt").write_text(f"colour {colour} 🎨")
    (folder / "README.md").write_text("none of ours")
    return folder


def tree(folder):
    """Path -> bytes of every file."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def test_the_flat_layout(src, tmp_path):
    out = tmp_path / "out"
    before = tree(src)
    outcome = prepare(src, out, Settings(sizes=((32, 32),)))
    assert (outcome.made, outcome.unchanged) == (4, False)
    names = [f"{i:06d}{suffix}" for i in range(4) for suffix in (".jpg", ".json")]
    assert sorted(tree(out)) == sorted([*names, "manifest.jsonl", "report.json"])
    assert json.loads((out / "000000.json").read_bytes()) == {"prompt": "colour (255, 0, 0) 🎨"}
    folder = MediaFolder(out, View(((32, 32),)))
    assert folder.prompts == [f"colour {c} 🎨" for c in (COLOURS[0], COLOURS[2], COLOURS[1], COLOURS[3])]
    assert folder[1]["media"][0, :, 9, 9].tolist() == pytest.approx(COLOURS[2], abs=6)
    entries = list(manifest(out))
    assert entries[0] == {
        "file": "000000.jpg",
        "source": "a.b.PNG",
        "source_sha256": sha256(src / "a.b.PNG"),
        "sha256": sha256(out / "000000.jpg"),
        "bytes": (out / "000000.jpg").stat().st_size,
        "height": 32,
        "width": 32,
        "bucket": [32, 32],
        "frames": 1,
        "fps": None,
        "prompt": "colour (255, 0, 0) 🎨",
    }
    report = json.loads((out / "report.json").read_bytes())
    assert report["kept"] == 4
    assert report["left_out"] == {".md": 1}
    assert tree(src) == before
    assert [p.name for p in tmp_path.iterdir()] == ["src", "out"] or sorted(os.listdir(tmp_path)) == ["out", "src"]


def test_a_second_run_does_nothing_and_a_copy_gives_the_same_bytes(src, tmp_path):
    settings = Settings(sizes=((32, 48), (48, 32)))
    prepare(src, tmp_path / "one", settings)
    stamps = {f: f.stat().st_mtime_ns for f in (tmp_path / "one").rglob("*")}
    outcome = prepare(src, tmp_path / "one", settings)
    assert (outcome.made, outcome.unchanged) == (0, True)
    assert {f: f.stat().st_mtime_ns for f in (tmp_path / "one").rglob("*")} == stamps
    shutil.copytree(src, tmp_path / "elsewhere" / "copy")
    prepare(tmp_path / "elsewhere" / "copy", tmp_path / "two", settings)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_what_is_there_must_be_of_the_same_source_and_settings(src, tmp_path):
    out, settings = tmp_path / "out", Settings(sizes=((32, 32),))
    prepare(src, out, settings)
    assert "was made with other settings (sizes [[32, 32]] there, null asked" in page(src, out, Settings())
    (src / "e.bmp").touch()  # later, but the same: it is compared by its hash
    assert prepare(src, out, settings).unchanged
    Image.new("RGB", (60, 40), (1, 2, 3)).save(src / "e.bmp")
    assert "was made from other files" in page(src, out, settings)
    (src / "e.txt").write_text("another caption")
    assert "was made from other files" in page(src, out, settings)


def test_places(src, tmp_path):
    settings = Settings()
    for out in (src, src / "in", tmp_path):
        assert "found a folder inside" in page(src, out, settings)
    (tmp_path / "file").write_text("")
    assert "found a file; accepted: a folder" in page(src, tmp_path / "file", settings)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("")
    assert "found a folder with 1 entries; accepted: an empty one" in page(src, tmp_path / "full", settings)
    assert (tmp_path / "full" / "mine.txt").exists()
    (tmp_path / "empty").mkdir()
    assert prepare(src, tmp_path / "empty", settings).made == 4
    assert "found nothing; accepted: a folder" in page(tmp_path / "no", tmp_path / "out", settings)


def test_bad_files_are_all_named_or_skipped_and_the_good_ones_are_kept_for_the_next_call(src, tmp_path):
    out = tmp_path / "out"
    (src / "deep" / "c.jpg").write_bytes(b"")
    (src / "e.bmp").write_bytes(b"BM")
    text = page(src, out, Settings())
    assert text.splitlines()[0] == f"{src}: 2 of 4 files cannot be used"
    assert not out.exists()
    Image.new("RGB", (60, 40)).save(src / "e.bmp")
    outcome = prepare(src, out, Settings(on_bad="skip"))
    assert outcome.made == 1
    assert outcome.report["kept"] == 3
    assert outcome.report["skipped"] == {"bad": 1}
    assert outcome.report["why"][0]["why"].startswith("deep/c.jpg: found an empty file")
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


@pytest.mark.timeout(60)
def test_a_pipe_is_not_read(src, tmp_path):
    (src / "e.bmp").unlink()
    os.mkfifo(src / "e.bmp")
    report = prepare(src, tmp_path / "out", Settings(on_bad="skip")).report
    assert report["skipped"] == {"bad": 1}
    assert "found something that is not a file; accepted: a picture or a video" in report["why"][0]["why"]


def test_an_animation_is_left_out_under_either_policy(src, tmp_path):
    frames = [Image.new("RGB", (8, 8), (i, 0, 0)) for i in (0, 99)]
    frames[0].save(src / "deep" / "[x] d.webp", save_all=True, append_images=frames[1:])
    report = prepare(src, tmp_path / "out", Settings()).report
    assert report["kept"] == 3
    assert report["skipped"] == {"animation": 1}


def test_faults_of_the_scan(src, tmp_path):
    """Those of captions and those of media are listed together."""
    (src / "e.txt").unlink()
    assert f"{src}: 1 faults\n" in page(src, tmp_path / "out", Settings())
    good = (src / "deep" / "c.jpg").read_bytes()
    (src / "deep" / "c.jpg").write_bytes(good[:99])
    lines = page(src, tmp_path / "out", Settings()).splitlines()
    assert lines[0] == f"{src}: 2 faults; 1 of 3 files cannot be used"
    assert [line.strip().split(":")[0] for line in lines[1:]] == [f"{src}/e.bmp", f"{src}/deep/c.jpg"]
    (src / "deep" / "c.jpg").write_bytes(good)
    report = prepare(src, tmp_path / "out", Settings(on_bad="skip")).report
    assert report["skipped"] == {"incomplete": 1}
    assert f"{src}: 1 faults\n" in page(src, tmp_path / "out", Settings())  # also where a result is there


def test_a_run_that_was_stopped_goes_on(src, tmp_path, monkeypatch):
    """What was done is not done again, and the result is that of an uninterrupted run."""
    prepare(src, tmp_path / "whole", Settings())
    calls, encode = [], module.jpeg

    def stopping(media):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return encode(media)

    monkeypatch.setattr(module, "jpeg", stopping)
    monkeypatch.setattr("sanarl.data.parallel.workers", lambda: 1)
    with pytest.raises(KeyboardInterrupt):
        prepare(src, tmp_path / "out", Settings())
    assert not (tmp_path / "out").exists()
    outcome = prepare(src, tmp_path / "out", Settings())
    assert outcome.made < 4
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_training_sees_what_check_sees_of_a_prepared_folder(src, tmp_path):
    out = tmp_path / "out"
    prepare(src, out, Settings(sizes=((32, 32),)))
    Image.new("RGB", (32, 32)).save(out / "000001.jpg")
    for name in ("000002.jpg", "000002.json"):
        (out / name).unlink()
    expected = [
        f"{out}/000001.jpg: differs from what the manifest says was written",
        f"{out}/000002.jpg: is in the manifest and missing",
    ]
    with pytest.raises(UserError) as caught:
        MediaFolder(out, View(((32, 32),))).verify()
    assert str(caught.value).splitlines() == [f"{out}: 2 faults", *(f"  {line}" for line in expected)]
    folder = MediaFolder(out, View(((32, 32),)), on_bad="skip")
    folder.verify()
    assert folder.notes[:2] == expected
    assert "  cropped to     32x32: 3" in folder.notes


def test_other_settings_begin_anew(src, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_assemble", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        prepare(src, tmp_path / "out", Settings())
    monkeypatch.undo()
    assert prepare(src, tmp_path / "out", Settings(sizes=((32, 32),))).made == 4
    assert {(e["height"], e["width"]) for e in manifest(tmp_path / "out")} == {(32, 32)}


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on(src, tmp_path):
    """SIGKILL at five moments; reference: an uninterrupted run."""
    for i in range(60):
        Image.effect_noise((200, 200), 90).save(src / f"n{i}.png")
        (src / f"n{i}.txt").write_text(f"noise {i}")
    prepare(src, tmp_path / "whole", Settings())
    code = (
        "import sys; from pathlib import Path; from sanarl.data.prepare import *; print('go', flush=True);"
        "prepare(Path(sys.argv[1]), Path(sys.argv[2]), Settings())"
    )
    out = tmp_path / "out"
    for moment in range(1, 10, 2):
        if out.exists():
            break
        process = subprocess.Popen([sys.executable, "-c", code, str(src), str(out)], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "go\n"
        time.sleep(0.02 * moment)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    prepare(src, out, Settings())
    assert tree(out) == tree(tmp_path / "whole")


def test_a_full_disk_is_said_and_what_is_done_is_kept(src, tmp_path, monkeypatch):
    real, calls = module.write_whole, []

    def full(path, data):
        calls.append(path)
        if len(calls) == 4:
            raise OSError(28, "No space left on device")
        real(path, data)

    monkeypatch.setattr(module, "write_whole", full)
    text = page(src, tmp_path / "out", Settings())
    assert text == (
        f"{tmp_path}/out: cannot be written: No space left on device; "
        "free some space and say the same again: what is done is kept"
    )
    monkeypatch.undo()
    assert prepare(src, tmp_path / "out", Settings()).report["kept"] == 4


def test_files_and_folders_that_may_not_be_read(src, tmp_path, monkeypatch):
    """Where the tests run as root, which may read everything, the system's answer is given by this test."""
    (src / "e.bmp").chmod(0)
    if os.access(src / "e.bmp", os.R_OK):
        real = open

        def refusing(path, *arguments, **named):
            if str(path).endswith("e.bmp"):
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *arguments, **named)

        monkeypatch.setattr("io.open", refusing)  # what pathlib opens with
    text = page(src, tmp_path / "out", Settings())
    assert text == f"{src}: 1 of 4 files cannot be used\n  {src}/e.bmp: cannot be read: Permission denied"
    assert prepare(src, tmp_path / "out", Settings(on_bad="skip")).report["skipped"] == {"bad": 1}


def test_two_at_once(src, tmp_path):
    seen = []

    def again(*_):
        if not seen:
            seen.append(page(src, tmp_path / "out", Settings()))

    assert prepare(src, tmp_path / "out", Settings(), again).made == 4
    assert "is being prepared by another process" in seen[0]


def test_split_goes_by_content(src, tmp_path):
    for i in range(40):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(src / f"{i}.png")
        Image.new("RGB", (8, 8), (i, 0, 0)).save(src / f"copy{i}.png")
        for name in (f"{i}", f"copy{i}"):
            (src / f"{name}.txt").write_text(name)
    report = prepare(src, tmp_path / "out", Settings(held_out=0.3)).report
    assert report["parts"]["test"] + report["parts"]["train"] == report["kept"] == 84
    assert 6 <= report["parts"]["test"] <= 46
    parts = {entry["source"]: entry["file"].split("/")[0] for entry in manifest(tmp_path / "out")}
    assert all(parts[f"{i}.png"] == parts[f"copy{i}.png"] for i in range(40))
    (src / "0.png").unlink()
    prepare(src, tmp_path / "fewer", Settings(held_out=0.3, on_bad="skip"))
    fewer = {entry["source"]: entry["file"].split("/")[0] for entry in manifest(tmp_path / "fewer")}
    assert all(parts[source] == part for source, part in fewer.items())
    assert len(MediaFolder(tmp_path / "out" / "train", View(((8, 8),)))) == report["parts"]["train"]


def test_clips(tmp_path):
    src, out = tmp_path / "src", tmp_path / "out"
    src.mkdir()
    for name, frames in (("a.mp4", 40), ("b.mov", 6), ("c.webm", 40)):
        write(src / name, frames, fps=20, size=(48, 64), codec="libvpx-vp9" if "webm" in name else "libx264")
        (src / name).with_suffix(".txt").write_text(name)
    settings = Settings(sizes=((32, 32),), clip=Clip(9, 10, "skip"))
    report = prepare(src, out, settings).report
    assert (report["kept"], report["skipped"]) == (2, {"short": 1})
    for i in range(2):
        found = probe(out / f"{i:06d}.mp4")
        assert (found.frames, found.height, found.width, found.seconds) == (9, 32, 32, pytest.approx(0.9))
    folder = MediaFolder(out, View(((32, 32),), Clip(9, 10)))
    folder.verify()
    assert numbers(folder[0]["media"]) == [0, 2, 4, 6, 8, 10, 12, 14, 16]
    assert next(manifest(out))["fps"] == 10
    prepare(src, tmp_path / "again", settings)
    assert tree(out) == tree(tmp_path / "again")
    odd = prepare(src, tmp_path / "odd", Settings(sizes=((33, 47),), clip=Clip(9, 10, "loop")))
    assert odd.report["kept"] == 3
    assert {(e["height"], e["width"], e["frames"]) for e in manifest(tmp_path / "odd")} == {(32, 46, 9)}
    assert "found a folder" not in page(src, tmp_path / "pictures", Settings())
