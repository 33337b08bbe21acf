"""What was looked at is remembered, and never when it has changed."""

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from clips import write
from PIL import Image

from sanarl.data import inspection
from sanarl.data.folder import MediaFolder, View
from sanarl.data.inspection import Verdict, inspect
from sanarl.data.parallel import ordered_map
from sanarl.data.video import Clip
from sanarl.errors import UserError

ROWS = [["a"], ["b/c"], ["b.d"], ["e"]]  # sorted by path: "b/c" before "b.d", as folders are entered


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SANARL_HOME", str(tmp_path / "home"))
    (tmp_path / "set" / "b").mkdir(parents=True)
    for (name,) in ROWS:
        (tmp_path / "set" / name).write_text(name)
    return tmp_path / "set"


class Looks:
    """Counts what it is shown; files that hold "bad" are bad."""

    def __init__(self):
        self.names = []

    def __call__(self, path):
        self.names.append(path.name)
        text = path.read_text() if path.exists() else "bad"
        return Verdict("bad", f"{path}: bad") if text == "bad" else Verdict("good", "", text)


def kinds(folder, look, label="x"):
    return [verdict["kind"] for verdict in inspect(folder, ROWS, look, label)]


def test_the_second_time_nothing_is_looked_at(folder):
    look = Looks()
    assert kinds(folder, look) == ["good"] * 4
    assert sorted(look.names) == ["a", "b.d", "c", "e"]
    assert kinds(folder, look) == ["good"] * 4
    assert len(look.names) == 4
    assert kinds(folder, look, "other settings") == ["good"] * 4
    assert len(look.names) == 8


def test_what_changed_or_was_bad_is_looked_at_again(folder):
    look = Looks()
    (folder / "e").write_text("bad")
    assert kinds(folder, look) == ["good", "good", "good", "bad"]
    look.names.clear()
    (folder / "a").write_text("longer")
    state = (folder / "b" / "c").stat()
    (folder / "b" / "c").write_text("bad")  # as long as before, later
    os.utime(folder / "b" / "c", ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert kinds(folder, look) == ["good", "bad", "good", "bad"]
    assert sorted(look.names) == ["a", "c", "e"]
    (folder / "b.d").unlink()
    assert kinds(folder, look)[2] == "bad"


def test_files_that_come_and_go(folder):
    look = Looks()
    inspect(folder, [ROWS[1], ROWS[3]], look, "x")
    kinds(folder, look)
    assert sorted(look.names) == ["a", "b.d", "c", "e"]
    inspect(folder, [ROWS[0], ROWS[2]], look, "x")
    assert len(look.names) == 4


@pytest.mark.parametrize(
    "line", ["{oops", "[1]", '{"path": "a"}', "\0", '{"path": 3, "size": 1, "time": 1, "verdict": 1}']
)
def test_a_damaged_memory_is_no_harm(folder, line, tmp_path):
    look = Looks()
    kinds(folder, look)
    (memory,) = (tmp_path / "home" / "checked").glob("*.jsonl")
    lines = memory.read_text().splitlines()
    memory.write_text("\n".join([line, *lines[:2], line, *lines[2:]]))
    assert kinds(folder, look) == ["good"] * 4


def test_an_interruption_keeps_what_was_done(folder):
    look = Looks()

    def stop(path):
        if path.name == "e":
            raise KeyboardInterrupt
        return look(path)

    with pytest.raises(KeyboardInterrupt):
        kinds(folder, stop)
    assert kinds(folder, look) == ["good"] * 4
    assert sorted(look.names) == ["a", "b.d", "c", "e"]


def test_of_several_one_looks(folder):
    """Locks of one process on separate open files exclude each other as those of several processes do."""
    look = Looks()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: kinds(folder, look), range(4)))
    assert found == [["good"] * 4] * 4
    assert len(look.names) == 4


def test_a_home_that_cannot_be_written(folder, monkeypatch, caplog, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SANARL_HOME", str(tmp_path / "file" / "home"))
    with caplog.at_level(logging.WARNING):
        assert kinds(folder, Looks()) == ["good"] * 4
    assert "nothing is remembered" in caplog.text


def test_a_map_in_order_with_bounded_look_ahead():
    """4 results a thread wait at most."""
    started = []
    results = ordered_map(lambda i: started.append(i) or i * i, iter(range(1000)), threads=2)
    assert next(results) == 0
    assert len(started) <= 2 * 4 + 3
    assert list(results) == [i * i for i in range(1, 1000)]


def test_a_map_that_fails_stops():
    def fail(i):
        if i == 5:
            raise ValueError("five")
        return i

    found = []
    with pytest.raises(ValueError, match="five"):
        found += ordered_map(fail, range(1000), threads=2)
    results = ordered_map(fail, range(1000), threads=2)
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]


# ------------------------------------------------------------------ of a folder


def pair(folder, name, colour=(255, 0, 0)):
    folder.mkdir(exist_ok=True, parents=True)
    Image.new("RGB", (8, 8), colour).save(folder / f"{name}.png")
    (folder / f"{name}.txt").write_text(name)


@pytest.fixture
def mixed(tmp_path, monkeypatch):
    monkeypatch.setenv("SANARL_HOME", str(tmp_path / "home"))
    for name in ("a", "b", "c", "d"):
        pair(tmp_path / "set", name)
    moving = [Image.new("RGB", (8, 8), (i, 0, 0)) for i in (0, 90)]
    moving[0].save(tmp_path / "set" / "c.png", save_all=True, append_images=moving[1:])
    (tmp_path / "set" / "b.png").write_bytes((tmp_path / "set" / "b.png").read_bytes()[:50])
    return tmp_path / "set"


def test_a_damaged_picture_is_an_error_or_skipped_by_every_rank_alike(mixed):
    with pytest.raises(UserError) as caught:
        MediaFolder(mixed, View(((8, 8),))).verify()
    assert str(caught.value).splitlines()[0] == f"{mixed}: 1 of 4 pictures cannot be read"
    ranks = [MediaFolder(mixed, View(((8, 8),)), on_bad="skip") for _ in range(2)]
    for rank in ranks:
        rank.verify()
        assert rank.prompts == ["a", "d"]
        assert rank[1]["prompt"] == "d"
    assert ranks[0].fingerprint == ranks[1].fingerprint
    assert ranks[0].notes[0] == f"{mixed}: 2 of 4 pairs skipped (1 bad, 1 animation)"


def test_animations_are_left_out_under_either_policy(mixed):
    pair(mixed, "b")
    folder = MediaFolder(mixed, View(((8, 8),)))
    folder.verify()
    assert folder.prompts == ["a", "b", "d"]
    assert f"{mixed}/c.png: found an animation of 2 frames" in folder.notes[1]


def test_another_folder_has_another_fingerprint(mixed):
    one = MediaFolder(mixed, View(((8, 8),)), on_bad="skip")
    before = one.fingerprint
    one.verify()
    assert one.fingerprint != before
    (mixed / "d.txt").write_text("other")
    two = MediaFolder(mixed, View(((8, 8),)), on_bad="skip")
    two.verify()
    assert two.fingerprint != one.fingerprint


def test_nothing_left(mixed):
    for name in ("a", "d"):
        (mixed / f"{name}.png").write_text("")
    folder = MediaFolder(mixed, View(((8, 8),)), on_bad="skip")
    with pytest.raises(UserError, match="nothing is left of 4 pairs"):
        folder.verify()


def test_videos(tmp_path, monkeypatch):
    monkeypatch.setenv("SANARL_HOME", str(tmp_path / "home"))
    for name, frames in (("a", 20), ("b", 3), ("c", 20)):
        write(tmp_path / f"{name}.mp4", frames, fps=16, size=(32, 32))
        (tmp_path / f"{name}.txt").write_text(name)
    for short, expected in (("skip", "ac"), ("pad", "abc"), ("loop", "abc")):
        folder = MediaFolder(tmp_path, View(((32, 32),), Clip(5, 16, short)))
        folder.verify()
        assert folder.prompts == list(expected)
        assert folder[0]["media"].shape == (5, 3, 32, 32)
    assert "1 of 3 pairs skipped (1 short)" in notes_of(tmp_path, "skip")
    folder = MediaFolder(tmp_path, View(((32, 32),), Clip(5, 16)))
    with pytest.raises(UserError, match=r"1 of 3 videos cannot be read\n.*b\.mp4: found 0\.188 s, which is 3 frames"):
        folder.verify()


def notes_of(path, short):
    folder = MediaFolder(path, View(((32, 32),), Clip(5, 16, short)))
    folder.verify()
    return "\n".join(folder.notes)


def test_the_memory_says_what_files_are(tmp_path, monkeypatch):
    monkeypatch.setenv("SANARL_HOME", str(tmp_path / "home"))
    pair(tmp_path / "set", "a")
    folder = MediaFolder(tmp_path / "set", View(((4, 4),)))
    folder.verify()
    (memory,) = (tmp_path / "home" / "checked").glob("*.jsonl")
    verdict = json.loads(memory.read_text())["verdict"]
    assert verdict["sha256"] == inspection.sha256(tmp_path / "set" / "a.png")
    assert (verdict["height"], verdict["width"], verdict["frames"]) == (8, 8, 1)
