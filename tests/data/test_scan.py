"""Captions from every kind of file. Reference: what the files were written with."""

import json
import os
import random
import subprocess
import sys
import tracemalloc

import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from sanarl.data.captions import read_caption, read_table
from sanarl.data.folder import MediaFolder, View, captions
from sanarl.data.scan import PICTURES, VIDEOS, _stem, _suffix, scan
from sanarl.errors import UserError


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(path)
    return path


def found(folder, keys=("prompt",), suffixes=PICTURES):
    result = scan(folder, suffixes, keys)
    assert result.faults == []
    return dict(result.rows)


def test_a_text_beside_a_picture(tmp_path):
    picture(tmp_path / "a.b.PNG")
    (tmp_path / "a.b.TXT").write_bytes("\ufeff  naïve\r\ncafé 🎨 \n".encode())
    assert found(tmp_path) == {"a.b.PNG": "naïve\ncafé 🎨"}


ASCII = """
import locale, sys
from pathlib import Path
from sanarl.data.prompts import read_metadata, read_prompts
from sanarl.data.scan import scan

assert locale.getpreferredencoding(False).upper() in ("ANSI_X3.4-1968", "ASCII", "US-ASCII")
folder = Path(sys.argv[1])
found = scan(folder)
assert found.faults == [], ascii(found.faults)
captions = [caption for _, caption in found.rows]
items = [*read_prompts(folder / "p.txt"), *read_metadata(folder / "q.jsonl")]
captions += [item["prompt"] for item in items]
print(ascii(captions))
"""


def test_the_locale_decides_nothing(tmp_path):
    """Under LC_ALL=C text would be ASCII: every reader says UTF-8 itself."""
    words = "naïve café 🎨"
    for name in "abcd":
        picture(tmp_path / f"{name}.png")
    (tmp_path / "a.json").write_text(json.dumps({"prompt": words}, ensure_ascii=False), encoding="utf-8")
    (tmp_path / "b.txt").write_text(words, encoding="utf-8-sig")
    table(tmp_path / "t.csv", [{"file_name": "c.png", "prompt": words}])
    row = json.dumps({"file_name": "d.png", "prompt": words}, ensure_ascii=False)
    (tmp_path / "metadata.jsonl").write_text(row, encoding="utf-8")
    (tmp_path / "p.txt").write_text(words, encoding="utf-8")
    (tmp_path / "q.jsonl").write_text(row, encoding="utf-8")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", ASCII, str(tmp_path)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == ascii([words] * 6)


def test_json_says_more_than_text_and_text_more_than_a_table(tmp_path):
    for name in ("a", "b", "c"):
        picture(tmp_path / f"{name}.png")
    rows = [{"file_name": f"{name}.png", "prompt": "table"} for name in "abc"]
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "a.json").write_text('{"prompt": "json"}')
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.txt").write_text("text")
    assert found(tmp_path) == {"a.png": "json", "b.png": "text", "c.png": "table"}
    assert scan(tmp_path).notes == []


def table(path, rows):
    """The same rows as metadata.jsonl, csv or parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\r\n" for row in rows), encoding="utf-8-sig", newline="")
    elif path.suffix.lower() == ".csv":
        quoted = [[f'"{str(cell).replace(chr(34), chr(34) * 2)}"' for cell in row.values()] for row in rows]
        text = "\r\n".join([",".join(rows[0]), *(",".join(row) for row in quoted)])
        path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    else:
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("name", ["metadata.jsonl", "Metadata.JSONL", "captions.csv", "a.CSV", "train.parquet"])
@pytest.mark.parametrize("key", ["file_name", "image", "path"])
def test_tables(tmp_path, name, key):
    files = ["a.png", "deep/b c.jpg", "[set] d/漢.webp"]
    texts = ['a "quoted", cat', "two\nlines", "naïve café 🎨"]
    for file in files:
        picture(tmp_path / file)
    rows = [{key: file, "text": text, "width": 4} for file, text in zip(files, texts, strict=True)]
    if name.lower() == "metadata.jsonl":
        (tmp_path / name).write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8-sig")
    else:
        table(tmp_path / name, rows)
    assert found(tmp_path, ("prompt", "text")) == dict(zip(sorted(files), [texts[2], texts[0], texts[1]], strict=True))


def test_the_innermost_table_counts_and_paths_are_its_own(tmp_path):
    picture(tmp_path / "in" / "a.png")
    picture(tmp_path / "in" / "b.png")
    table(tmp_path / "metadata.jsonl", [{"file_name": f"./in/{n}.png", "prompt": "outer"} for n in "ab"])
    table(tmp_path / "in" / "metadata.jsonl", [{"file_name": "a.png", "prompt": "inner"}])
    assert found(tmp_path) == {"in/a.png": "inner", "in/b.png": "outer"}


def test_the_first_key_that_is_there_counts(tmp_path):
    for name, keys in (("a", ["text", "caption"]), ("b", ["text"])):
        picture(tmp_path / f"{name}.png")
        (tmp_path / f"{name}.json").write_text(json.dumps({key: key for key in keys}))
    assert found(tmp_path, ("caption", "text")) == {"a.png": "caption", "b.png": "text"}
    assert read_caption(tmp_path / "b.json", ("prompt", "title"))[1] == (
        f"{tmp_path}/b.json: found the keys ['text']; accepted: an object with one of the keys 'prompt', 'title'"
    )


def test_videos_and_pictures_do_not_disturb_each_other(tmp_path):
    picture(tmp_path / "a.png")
    (tmp_path / "a.MP4").write_bytes(b"")
    (tmp_path / "b.webm").write_bytes(b"")
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name)
    assert found(tmp_path) == {"a.png": "a"}
    assert found(tmp_path, suffixes=VIDEOS) == {"a.MP4": "a", "b.webm": "b"}


def test_the_same_stem_in_two_folders(tmp_path):
    for folder in ("x", "y"):
        picture(tmp_path / folder / "a.png")
        (tmp_path / folder / "a.json").write_text(json.dumps({"prompt": folder}))
    assert found(tmp_path) == {"x/a.png": "x", "y/a.png": "y"}


def test_what_is_none_of_ours_is_named(tmp_path):
    picture(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("a cat")
    for name in (
        "README.md",
        "Thumbs.db",
        ".DS_Store",
        "b.heic",
        "dataset_info.json",
        "notes.txt",
        "c.gif",
        "no_suffix",
    ):
        (tmp_path / name).write_text("{}")
    result = scan(tmp_path)
    assert result.faults == []
    assert len(result.rows) == 1
    assert len(result.notes) == 1
    line = result.notes[0]
    assert line.startswith(f"{tmp_path}: 8 files left out (")
    for name in (
        "README.md",
        "Thumbs.db",
        ".DS_Store",
        "b.heic",
        "dataset_info.json",
        "notes.txt",
        "c.gif",
        "no_suffix",
    ):
        assert name in line
    for i in range(100):
        (tmp_path / f"{i}.tmp").write_text("")
    assert "108 files left out (100 .tmp" in scan(tmp_path).notes[0]
    assert scan(tmp_path).notes[0].endswith(", ...")


@pytest.mark.parametrize(
    "name", ["../out.png", "/etc/passwd", "..", "in/../../out.png", "..\\out.png", "no.png", "\0", ""]
)
def test_a_table_names_files_of_its_own_folder_only(tmp_path, name):
    picture(tmp_path / "out.png")
    picture(tmp_path / "set" / "a.png")
    rows = [{"file_name": "a.png", "prompt": "a"}, {"file_name": name, "prompt": "b"}]
    table(tmp_path / "set" / "metadata.jsonl", rows)
    result = scan(tmp_path / "set")
    assert list(result.rows) == [["a.png", "a"]]
    assert len(result.faults) == 1


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("metadata.jsonl", b'{"file_name": "a.png", "prompt": "a"}\n{oops\n', "metadata.jsonl:2: not JSON"),
        ("metadata.jsonl", b"[1]\n", "metadata.jsonl:1: found list; accepted: a file's name under one of file_name"),
        (
            "metadata.jsonl",
            b'{"file_name": "a.png", "text": "a"}',
            "found the keys ['file_name', 'text']; accepted: an",
        ),
        ("metadata.jsonl", b'{"file_name": 3, "prompt": "a"}', "metadata.jsonl:1: found int as the file's name"),
        ("metadata.jsonl", b"[" * 100_000, "metadata.jsonl:1: not JSON"),
        ("metadata.jsonl", b"x" * (3 << 20), "metadata.jsonl:1: a line of more than 1048576 characters"),
        ("metadata.jsonl", b'{"file_name": "a.png", "prompt": "caf\xe9"}', "metadata.jsonl: after row 0: not UTF-8"),
        ("a.csv", b'file_name,prompt\r\na.png,"open', "a.csv: after row 0: cannot be read: unexpected end of data"),
        ("a.csv", b"file_name,prompt\r\na.png\r\n", "a.csv:2: key 'prompt': found None; accepted: a string"),
        ("a.csv", b"file_name,prompt\r\na.png,a,b,c\r\n", None),
        ("a.csv", b"\0" * 1000, "a.png: no a.json beside it"),
        ("a.csv", b"file_name,prompt\r\na.png," + b"x" * 200_000, "field larger than field limit"),
        ("a.parquet", b"PAR1" * 10, "a.parquet: after row 0: cannot be read"),
        ("a.parquet", b"", "a.parquet: after row 0: cannot be read"),
    ],
)
def test_hostile_tables_are_faults(tmp_path, name, content, expected):
    picture(tmp_path / "a.png")
    (tmp_path / name).write_bytes(content)
    faults = scan(tmp_path).faults
    if expected is None:
        assert faults == []
    else:
        assert expected in faults[0]


def test_a_file_with_two_captions_in_a_table(tmp_path):
    picture(tmp_path / "a.png")
    table(tmp_path / "metadata.jsonl", [{"file_name": "a.png", "prompt": p} for p in ("one", "one", "two")])
    assert scan(tmp_path).faults == [f"{tmp_path}/metadata.jsonl: 'a.png': found two captions; accepted: one"]


def test_parquet_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(UserError, match="reading parquet needs a package that is missing: pip install pyarrow"):
        list(read_table(tmp_path / "a.parquet", ("prompt",)))


@pytest.mark.parametrize("name", ["a", "a.b", "a.b.JPG", ".a", "..a", "...", "a.", "a..", "..a.b", ".a.B", ""])
def test_names_are_cut_as_everywhere(name):
    """Reference: os.path.splitext."""
    stem, suffix = os.path.splitext(name)
    assert (_stem(name), _suffix(name)) == (stem, suffix.lower())


def test_random_bytes_never_raise(tmp_path):
    rng = random.Random(0)
    picture(tmp_path / "a.png")
    alphabet = [
        b'{"prompt": "',
        b'"}',
        b"\n",
        b'{"file_name": "a.png", ',
        b"\xff",
        b"\0",
        b",",
        b'"',
        b"\xef\xbb\xbf",
        b"9",
    ]
    for _ in range(300):
        data = b"".join(rng.choice(alphabet) for _ in range(rng.randrange(12)))
        for name in ("a.json", "a.txt", "metadata.jsonl", "t.csv"):
            (tmp_path / name).write_bytes(data)
        result = scan(tmp_path)
        assert len(result.rows) <= 1
        assert all(str(tmp_path) in fault for fault in result.faults)


def test_skipping_counts_what_it_skips(tmp_path):
    for name in ("good", "no_caption", "bad_caption"):
        picture(tmp_path / f"{name}.png")
    (tmp_path / "good.txt").write_text("good")
    (tmp_path / "bad_caption.json").write_text("{oops")
    (tmp_path / "no_picture.json").write_text('{"prompt": "x"}')
    folder = MediaFolder(tmp_path, View(((8, 8),)), on_bad="skip")
    folder.verify()
    assert folder.prompts == ["good"]
    assert folder.notes[0] == f"{tmp_path}: 3 of 4 pairs skipped (3 incomplete)"
    faults = [note.split(":")[0].strip() for note in folder.notes[1:4]]
    assert sorted(faults) == [
        f"{tmp_path}/{name}" for name in ("bad_caption.json", "no_caption.png", "no_picture.json")
    ]
    assert folder.notes[4].startswith("  height ")


def test_captions_of_pairs_tables_and_lone_files(tmp_path):
    picture(tmp_path / "b.png")
    (tmp_path / "b.txt").write_text("of a text")
    (tmp_path / "a.json").write_text('{"prompt": "alone"}')
    (tmp_path / "c.mp4").write_text("")
    table(tmp_path / "metadata.jsonl", [{"file_name": "c.mp4", "prompt": "of a row"}])
    assert captions(tmp_path) == ["alone", "of a text", "of a row"]


def test_names_that_are_not_unicode(tmp_path):
    try:
        (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("a")
    except OSError:
        pytest.skip("this file system takes Unicode only")
    with open(os.fsencode(tmp_path) + b"/caf\xe9.png", "wb") as file:
        Image.new("RGB", (4, 4)).save(file, format="png")
    folder = MediaFolder(tmp_path, View(((4, 4),)))
    folder.verify()
    assert folder[0]["prompt"] == "a"
    assert len(folder.fingerprint) == 64


def test_memory_does_not_grow_with_the_number_of_pairs(tmp_path):
    """Of 4,000 pairs in folders of 100 the peak stays below what 200 bytes a pair would take; 80 kB are kept."""
    for folder in range(40):
        (tmp_path / f"{folder:02}").mkdir()
        for i in range(100):
            (tmp_path / f"{folder:02}" / f"{i}.png").touch()
            (tmp_path / f"{folder:02}" / f"{i}.txt").write_text(f"caption {i} " * 30)
    tracemalloc.start()
    result = scan(tmp_path)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(result.rows) == 4000
    assert kept < 80_000
    assert peak < 200 * 4000


def test_a_table_about_something_else_is_left_out(tmp_path):
    picture(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("a cat")
    (tmp_path / "statistics.csv").write_text("epoch,loss\n1,2\n2,1\n")
    (tmp_path / "files.csv").write_text("file_name,width\na.png,4\n")
    (tmp_path / "empty.csv").write_text("")
    result = scan(tmp_path)
    assert (list(result.rows), result.faults) == ([["a.png", "a cat"]], [])
    assert "3 files left out (3 .csv): empty.csv, files.csv, statistics.csv" in result.notes[0]
    (tmp_path / "statistics.csv").rename(tmp_path / "metadata.csv")  # a name that says what it is
    assert "metadata.csv:2: found the keys ['epoch', 'loss']" in scan(tmp_path).faults[0]


def test_a_table_of_parquet_about_something_else(tmp_path):
    picture(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("a cat")
    table(tmp_path / "scores.parquet", [{"epoch": 1}])
    result = scan(tmp_path)
    assert result.faults == []
    assert "scores.parquet" in result.notes[0]


def test_folders_in_folders_in_folders(tmp_path, monkeypatch):
    picture(tmp_path / "/".join("abcdefgh" * 20) / "a.png")
    (tmp_path / "/".join("abcdefgh" * 20) / "a.txt").write_text("deep")
    assert len(scan(tmp_path).rows) == 1
    monkeypatch.chdir(tmp_path)
    for _ in range(300):
        os.mkdir("d")
        os.chdir("d")
    try:
        with pytest.raises(UserError, match="found folders nested deeper than 200 levels"):
            scan(tmp_path)
    finally:
        for _ in range(300):  # pytest's own cleaning would recurse
            os.chdir("..")
            os.rmdir("d")


def test_links_that_lead_nowhere_are_faults_of_their_own(tmp_path):
    (tmp_path / "a.png").symlink_to(tmp_path / "gone.png")
    (tmp_path / "a.txt").write_text("gone")
    (tmp_path / "b.png").symlink_to("b.png")
    (tmp_path / "b.txt").write_text("itself")
    folder = MediaFolder(tmp_path, View(((4, 4),)))
    with pytest.raises(UserError) as caught:
        folder.verify()
    assert "a.png: found nothing" in str(caught.value)
    assert "b.png: " in str(caught.value)
