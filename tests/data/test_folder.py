"""Reference: what the files were written with."""

import json
import os

import pytest
import torch
from clips import write
from PIL import Image

from sanarl.data.folder import MediaFolder, View, captions
from sanarl.data.module import checked_sft
from sanarl.data.video import Clip
from sanarl.errors import UserError
from sanarl.types import unit

SIZE = (8, 8)


def pair(folder, name, suffix=".png", prompt="a cat", colour=(255, 0, 0), key="prompt"):
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (10, 12), colour).save(folder / f"{name}{suffix}")
    (folder / f"{name}.json").write_text(json.dumps({key: prompt}), encoding="utf-8")


def folder_of(path, size=SIZE, prompt_key="prompt", **options):
    return MediaFolder(path, View((size,)), (prompt_key,), **options)


def page(path, **options):
    with pytest.raises(UserError) as caught:
        folder_of(path, SIZE, **options).verify()
    return str(caught.value)


def test_items_are_what_training_takes(tmp_path):
    pair(tmp_path, "a", colour=(0, 255, 0))
    item = folder_of(tmp_path, SIZE)[0]
    assert item == {"prompt": "a cat", "media": item["media"]}
    expected = torch.tensor([0.0, 1.0, 0.0])[None, :, None, None].expand(1, 3, *SIZE)
    assert item["media"].dtype == torch.uint8
    assert torch.equal(unit(checked_sft(item, 0, "folder", (SIZE,))["media"]), expected)


@pytest.mark.parametrize("suffix", [".jpg", ".JPG", ".Jpeg", ".png", ".PNG", ".webp", ".bmp", ".tif", ".TIFF"])
def test_every_suffix_in_any_letter_case(tmp_path, suffix):
    pair(tmp_path, "a", suffix)
    assert folder_of(tmp_path, SIZE)[0]["media"].shape == (1, 3, *SIZE)


@pytest.mark.parametrize("name", ["a.b", "v1.2.final", "my_json_set", "[set] a", "*", "a b", "漢字", "a.json", "..."])
@pytest.mark.parametrize("where", [".", "deep/er/still", "[x] set", "my_json_set", "d.o.t.s"])
def test_names_and_folders_are_taken_literally(tmp_path, where, name):
    pair(tmp_path / where, f"x{name}", prompt="found")
    assert folder_of(tmp_path, SIZE).prompts == ["found"]


def test_json_suffix_and_letter_case_of_names(tmp_path):
    pair(tmp_path, "Cat", ".JPG")
    (tmp_path / "Cat.json").rename(tmp_path / "cat.JSON")
    assert len(folder_of(tmp_path, SIZE)) == 1


def test_names_that_differ_in_letter_case_only_are_two(tmp_path):
    pair(tmp_path, "a", prompt="small")
    if (tmp_path / "A.png").exists():
        pytest.skip("this file system ignores letter case")
    pair(tmp_path, "A", prompt="large")
    assert folder_of(tmp_path, SIZE).prompts == ["large", "small"]


def test_the_order_is_that_of_the_sorted_paths(tmp_path):
    for name in ("b", "a", "c/z", "c/y", "B"):
        pair(tmp_path / os.path.dirname(name), os.path.basename(name), prompt=name)
    assert folder_of(tmp_path, SIZE).prompts == ["B", "a", "b", "c/y", "c/z"]


def test_byte_order_mark_and_line_ends(tmp_path):
    pair(tmp_path, "a")
    (tmp_path / "a.json").write_bytes('\ufeff{"prompt":\r\n "naïve café 🎨 "}\r\n'.encode())
    assert folder_of(tmp_path, SIZE).prompts == ["naïve café 🎨"]


def test_hidden_files_are_left_out(tmp_path):
    pair(tmp_path, "a")
    (tmp_path / "._a.jpg").write_bytes(b"resource fork")
    pair(tmp_path / ".cache", "b")
    assert len(folder_of(tmp_path, SIZE)) == 1


def test_links_are_followed_and_loops_end(tmp_path):
    pair(tmp_path / "store", "a")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "linked").symlink_to(tmp_path / "store", target_is_directory=True)
    (tmp_path / "store" / "loop").symlink_to(tmp_path / "set", target_is_directory=True)
    assert len(folder_of(tmp_path / "set", SIZE)) == 1


def test_another_prompt_key(tmp_path):
    pair(tmp_path, "a", key="caption")
    assert folder_of(tmp_path, SIZE, prompt_key="caption").prompts == ["a cat"]
    assert "found the keys ['caption']; accepted: an object with the key 'prompt'" in page(tmp_path)


def test_all_faults_are_listed_at_once(tmp_path):
    pair(tmp_path, "good")
    for name in ("no_json", "no_picture", "bad_json", "no_key", "blank", "twice", "number", "half", "list", "latin"):
        pair(tmp_path, name)
    (tmp_path / "no_json.json").unlink()
    (tmp_path / "no_picture.png").rename(tmp_path / "no_picture.heic")
    (tmp_path / "bad_json.json").write_text('{"prompt":\n oops}')
    (tmp_path / "no_key.json").write_text('{"text": "a"}')
    (tmp_path / "blank.json").write_text('{"prompt": " \\n"}')
    Image.new("RGB", (4, 4)).save(tmp_path / "twice.JPG")
    (tmp_path / "number.json").write_text('{"prompt": 3}')
    (tmp_path / "half.json").write_text('{"prompt": "\\ud83d"}')
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "latin.json").write_bytes('{"prompt":\n "café"}'.encode("latin-1"))
    (tmp_path / "good.png").write_bytes((tmp_path / "good.png").read_bytes()[:50])
    pair(tmp_path, "better")
    text = page(tmp_path)
    assert text.splitlines()[0] == f"{tmp_path}: 11 faults; 1 of 2 pictures cannot be read"
    assert len(text.splitlines()) == 12
    for expected in [
        "good.png: cannot be decoded",
        "no_json.png: no no_json.json beside it, nor .txt, nor a row of a table",
        "no_picture.json: no picture beside it (found no_picture.heic)",
        "bad_json.json:2: not JSON",
        "no_key.json: found the keys ['text']",
        "blank.json: key 'prompt': found the blank prompt ' \\n'",
        "twice.json: several media beside it: twice.JPG, twice.png",
        "number.json: key 'prompt': found int '3'",
        "half.json: key 'prompt': found half of a surrogate pair",
        "list.json: found list; accepted: an object",
        "latin.json:2: found byte 0xe9, which is not UTF-8",
    ]:
        assert f"{tmp_path}/{expected}" in text


def test_a_thousand_faults_are_counted(tmp_path):
    for i in range(130):
        (tmp_path / f"{i}.json").write_text("")
        (tmp_path / f"{i}.png").write_text("")
    assert page(tmp_path).endswith("and 30 more")


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b'{"prompt": ' + b"9" * 5000 + b"}", b"\0", b"null", b" " * (2 << 20)]
)
def test_hostile_json_is_a_fault(tmp_path, content):
    pair(tmp_path, "a")
    (tmp_path / "a.json").write_bytes(content)
    assert f"{tmp_path}/a.json" in page(tmp_path)


def test_a_pipe_does_not_hang_the_scan(tmp_path):
    pair(tmp_path, "a")
    (tmp_path / "a.json").unlink()
    os.mkfifo(tmp_path / "a.json")
    assert "not a regular file" in page(tmp_path)


def test_missing_and_empty_folders(tmp_path):
    assert "found nothing; accepted: a folder" in page(tmp_path / "none")
    (tmp_path / "file").write_text("")
    assert "found a file; accepted: a folder" in page(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert "found no files; accepted: NAME.json or NAME.txt beside NAME" in page(tmp_path / "empty")
    (tmp_path / "empty" / "clip.mp4").write_text("")
    assert "found 1 files (1 .mp4)" in page(tmp_path / "empty")


def test_damaged_pictures_are_all_found_before_training(tmp_path):
    for name in ("a", "b", "c", "d"):
        pair(tmp_path, name)
    folder = folder_of(tmp_path, SIZE)
    folder.verify()
    (tmp_path / "b.png").write_bytes((tmp_path / "b.png").read_bytes()[:50])
    (tmp_path / "d.png").write_text("<html>")
    with pytest.raises(UserError) as caught:
        folder.verify()
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{tmp_path}: 2 of 4 pictures cannot be read"
    assert [line.split(":")[0].strip() for line in lines[1:]] == [f"{tmp_path}/b.png", f"{tmp_path}/d.png"]


def test_captions_need_no_pictures(tmp_path):
    pair(tmp_path, "b", prompt="second")
    (tmp_path / "a.json").write_text('{"prompt": "first"}')
    assert captions(tmp_path) == ["first", "second"]
    (tmp_path / "c.json").write_text("{}")
    with pytest.raises(UserError, match=r"c\.json: found the keys \[\]"):
        captions(tmp_path)


def test_what_an_item_that_is_not_decoded_depends_on(tmp_path):
    """Each part is changed alone: the bytes of the file, the size, and frames, rate and length policy of a clip."""
    pair(tmp_path, "a")
    write(tmp_path / "a.mp4", 20, fps=8, size=(64, 64))
    clip = Clip(5, 8.0)
    sizes = ((8, 8),)
    views = [View(sizes), View(((8, 16),)), View(sizes, background=(0, 0, 0))]
    views += [View(sizes, one) for one in (clip, Clip(9, 8.0), Clip(5, 4.0), Clip(5, 8.0, "pad"))]
    contents = {MediaFolder(tmp_path, view).described(0)["content"] for view in views}
    assert len(contents) == len(views)
    folder = MediaFolder(tmp_path, views[0])
    before = folder.described(0)
    assert before["prompt"] == "a cat"
    assert folder.described(0) == before
    Image.new("RGB", (4, 4), (9, 9, 9)).save(tmp_path / "a.png")
    assert folder.described(0)["content"] != before["content"]
    (tmp_path / "a.png").unlink()
    with pytest.raises(UserError, match=r"a\.png: cannot be read: No such file"):
        folder.described(0)
