"""sanarl dataset, through the command line's own door."""

import json
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from sanarl.cli import app
from sanarl.errors import UserError

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from clips import write


@pytest.fixture
def src(tmp_path, monkeypatch):
    monkeypatch.setenv("SANARL_HOME", str(tmp_path / "home"))
    folder = tmp_path / "src"
    folder.mkdir()
    for i, size in enumerate([(60, 40), (40, 60), (64, 64), (60, 40)]):
        Image.new("RGB", size, (90 * (i % 3), 0, 0)).save(folder / f"{i}.png")
        (folder / f"{i}.json").write_text(json.dumps({"prompt": f"picture {i % 3}", "text": "other words here"}))
    (folder / "notes.md").write_text("")
    return folder


def run(*arguments):
    """(exit code, stdout, stderr); a UserError is what main() prints before it exits with 2."""
    result = CliRunner().invoke(app, ["dataset", *map(str, arguments)])
    if isinstance(result.exception, UserError):
        return 2, result.stdout, str(result.exception)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_check_counts(src):
    code, out, _ = run("check", src)
    assert code == 0
    assert out.splitlines()[0] == "4 pictures can be used"
    for line in (
        "  height         40 to 64, median 50",
        "  caption words  2 to 2, median 2",
        "  sizes          40x60: 2, 60x40: 1, 64x64: 1",
        "  1 copies of other files, for example 3.png of 0.png",
        "  1 captions were there before",
    ):
        assert line in out
    assert "1 files left out (1 .md): notes.md" in out


def test_check_as_json_and_with_another_caption_key(src):
    code, out, err = run("check", src, "--json", "--caption-key", "text")
    page = json.loads(out)["found"][0]
    assert code == 0
    assert page["usable"] == 4
    assert page["caption_words"]["max"] == 3
    assert page["copies_first"] == {"0.png": ["3.png"]}
    assert "4 pictures can be used" in err


def test_check_of_a_folder_with_faults(src):
    (src / "1.png").write_bytes(b"")
    (src / "2.json").unlink()
    code, out, err = run("check", src)
    assert code == 2
    assert "2 pictures can be used; not: 1 incomplete, 1 bad" in out
    assert err.splitlines()[0] == f"{src}: 2 faults"
    assert run("check", src, "--on-bad", "skip")[0] == 0
    assert "accepted: error, skip" in run("check", src, "--on-bad", "ignore")[2]


def test_check_as_a_preset_would_read(src):
    bucket = "data.buckets=[[64, 64], [64, 96], [96, 64]]"
    code, out, _ = run("check", src, "--config", "tiny-image-sft-lora", "--set", bucket)
    assert code == 0
    assert "  cropped to     64x64: 1, 64x96: 2, 96x64: 1" in out
    assert "--set overrides a key of --config" in run("check", src, "--set", "data.on_bad=skip")[2]


def test_check_of_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("SANARL_HOME", str(tmp_path / "home"))
    (tmp_path / "empty").mkdir()
    code, _, err = run("check", tmp_path / "empty")
    assert code == 2
    assert "found no captioned picture or video" in err
    assert run("check", tmp_path / "none")[0] == 2


def test_check_of_videos(tmp_path, monkeypatch):
    monkeypatch.setenv("SANARL_HOME", str(tmp_path / "home"))
    for name, frames in (("a", 9), ("b", 5)):
        write(tmp_path / f"{name}.mp4", frames, fps=8, size=(32, 48))
        (tmp_path / f"{name}.txt").write_text(name)
    code, out, _ = run("check", tmp_path)
    assert code == 0
    assert "  frames         5 to 9, median 7" in out
    assert "  seconds        0.625 to 1.125, median 0.875" in out


def test_prepare_then_check_then_damage(src, tmp_path):
    out_folder = tmp_path / "out"
    code, out, _ = run("prepare", src, "--out", out_folder, "--size", "32x32")
    assert code == 0
    assert out.splitlines()[0] == f"{out_folder}: 4 kept, 0 skipped"
    assert "4 made now" in out
    assert "nothing to do: all of it was there" in run("prepare", src, "--out", out_folder, "--size", "32x32")[1]
    assert run("check", out_folder)[0] == 0
    Image.new("RGB", (32, 32)).save(out_folder / "000001.jpg")
    (out_folder / "000002.jpg").unlink()
    (out_folder / "000002.json").unlink()
    code, _, err = run("check", out_folder)
    assert code == 2
    assert "000001.jpg: differs from what the manifest says was written" in err
    assert "000002.jpg: is in the manifest and missing" in err


@pytest.mark.parametrize("line", ['{"id": 3}', "[1]", "not JSON", '{"file": "0.png"}', "\xff"])
def test_a_manifest_of_something_else_says_nothing(src, line):
    (src / "manifest.jsonl").write_text(f"{line}\n", encoding="latin-1")
    code, out, _ = run("check", src)
    assert code == 0
    assert "4 pictures can be used" in out


def test_a_manifest_that_was_cut(src, tmp_path):
    run("prepare", src, "--out", tmp_path / "out", "--size", "32x32")
    file = tmp_path / "out" / "manifest.jsonl"
    file.write_text(file.read_text()[:-30])
    code, _, err = run("check", tmp_path / "out")
    assert code == 2
    assert err == f"{file}:4: found no entry of a manifest; prepare the folder anew"


def test_prepare_as_a_preset_would_read(src, tmp_path):
    code, out, _ = run("prepare", src, "--out", tmp_path / "out", "--config", "tiny-image-sft-lora", "--json")
    assert code == 0
    assert json.loads(out)["settings"]["sizes"] == [[64, 64]]
    code, out, _ = run("prepare", src, "--out", tmp_path / "b", "--size", "64x64", "--buckets", "64x64,64x96", "--json")
    assert json.loads(out)["settings"]["sizes"] == [[64, 64], [64, 96]]
    code, out, _ = run("prepare", src, "--out", tmp_path / "s", "--split", "0.5", "--json")
    assert sum(json.loads(out)["parts"].values()) == 4


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--size", "64"], "--size: found '64'; accepted: HEIGHTxWIDTH"),
        (["--size", "0x64"], "accepted: HEIGHTxWIDTH of 2 to 8192 pixels"),
        (["--buckets", "64x64,a"], "--buckets: found 'a'"),
        (["--buckets", "auto"], "--buckets auto: of which area?"),
        (["--frames", "10"], "--frames: found 10; accepted: 4k + 1 (autoencoders pack time by four), such as 9"),
        (["--fps", "8"], "--fps is about clips; say how long they shall be with --frames 41"),
        (["--frames", "9", "--fps", "-1"], "--fps: found -1"),
        (["--frames", "9", "--short", "cut"], "--short: found 'cut'; accepted: error, skip, loop, pad"),
        (["--alpha", "white"], "--alpha: found 'white'"),
        (["--on-bad", "x"], "--on-bad: found 'x'"),
        (["--split", "1"], "--split: found 1; accepted: a share"),
        (["--frames", "9"], "found 9 files"),
    ],
)
def test_options_that_are_wrong(src, tmp_path, options, expected):
    code, _, err = run("prepare", src, "--out", tmp_path / "out", *options)
    assert code == 2
    assert expected in err
    assert not (tmp_path / "out").exists()


def test_fetch_lists_and_makes(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, out, _ = run("fetch")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        "pickscore",
        "ocr",
        "geneval",
        "drawbench",
        "dance_grpo_t2v",
        "vidprom",
    ]
    code, out, _ = run("fetch", "ocr", "--out", tmp_path)
    assert code == 0
    assert "train.txt: made, 20000 lines" in out
    assert len((tmp_path / "test.txt").read_text().splitlines()) == 200
