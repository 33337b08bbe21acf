import json

import numpy as np
import pytest
import torch
from PIL import Image

from sanarl.rollout.preview import GAP, TEXT, films, sheet, singles, to_image


def picture(colour, height=64, width=64):
    return torch.tensor(colour).view(1, 3, 1, 1).expand(1, 3, height, width)


def opened(path):
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image)


def test_pixels_are_rounded_and_clipped():
    # Reference: round(255 x) by hand.
    frame = torch.tensor([-0.5, 0.0, 0.5, 1.0, 7.0]).view(1, 1, 5).expand(3, 1, 5)
    assert np.asarray(to_image(frame))[0, :, 0].tolist() == [0, 0, 128, 255, 255]


@pytest.mark.parametrize(
    ("count", "samples", "columns", "grid"), [(1, 1, 4, (1, 1)), (5, 1, 4, (4, 2)), (3, 2, 2, (2, 2))]
)
def test_a_sheet_has_the_size_of_its_grid(tmp_path, count, samples, columns, grid):
    # Reference: a cell is its pictures at 128 pixels with two between them, two lines of text, and gaps.
    rows = [(f"caption {i}", [(picture([1.0, 0.0, 0.0]), 0.5)] * samples) for i in range(count)]
    sheet(rows, tmp_path / "deep" / "a.png", columns)
    width, height = samples * 130 + GAP, 128 + 2 * (TEXT + 4) + GAP
    assert opened(tmp_path / "deep" / "a.png").shape == (grid[1] * height + GAP, grid[0] * width + GAP, 3)


def test_pictures_stand_in_their_places(tmp_path):
    colours = [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    sheet([("before and after", [(picture(c), None) for c in colours])], tmp_path / "a.png")
    pixels = opened(tmp_path / "a.png")
    top = GAP + TEXT + 4 + 64
    assert pixels[top, GAP + 64].tolist() == [255, 0, 0]
    assert pixels[top, GAP + 130 + 64].tolist() == [0, 0, 255]


def test_wide_and_large_pictures_keep_their_shape(tmp_path):
    sheet([("wide", [(picture([0.0, 0.0, 0.0], 500, 1000), 1.0)])], tmp_path / "a.png")
    dark = (opened(tmp_path / "a.png")[TEXT + 10 :] == 0).all(-1)
    rows, columns = dark.any(1).sum(), dark[: 192 + 2].any(0).sum()
    assert columns == 384
    assert 192 <= rows <= 192 + TEXT  # the score's letters below are dark too


def test_long_captions_and_any_letters_fit(tmp_path):
    sheet([("größer " * 100 + "\n圆", [(picture([0.0, 0.0, 0.0]), float("nan"))])], tmp_path / "a.png")
    assert opened(tmp_path / "a.png").shape[1] == 130 + 2 * GAP


@pytest.mark.timeout(60)
def test_a_caption_without_end_is_cut_at_once(tmp_path):
    sheet([("x" * 100_000, [(picture([0.0, 0.0, 0.0]), None)])], tmp_path / "a.png")
    assert opened(tmp_path / "a.png").shape[1] == 130 + 2 * GAP


def test_nothing_to_show_writes_nothing(tmp_path):
    sheet([], tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


def test_pictures_of_captions_that_begin_alike_do_not_overwrite_each_other(tmp_path):
    prompts = ["a red circle left of a blue square"] * 2 + [
        "a red circle left of a blue squid",
        "\u00e9\u00e8/../..",
        ".",
    ]
    media = torch.rand(5, 1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    singles(prompts, media, [0.5, None, 1.0, 0.0, 0.25], tmp_path / "step", fps=16)
    files = sorted((tmp_path / "step").glob("*.png"))
    assert len(files) == 5
    assert [f.name[:4] for f in files] == ["000_", "001_", "002_", "003_", "004_"]
    found = opened(files[2])  # reference: the pixels that were given
    np.testing.assert_array_equal(found, (media[2, 0].permute(1, 2, 0) * 255).round().byte().numpy())
    index = json.loads((tmp_path / "step" / "index.json").read_text(encoding="utf-8"))
    assert [sample["file"] for sample in index["samples"]] == [f.name for f in files]
    assert [sample["prompt"] for sample in index["samples"]] == prompts
    assert [sample["reward"] for sample in index["samples"]] == [0.5, None, 1.0, 0.0, 0.25]
    assert index["fps"] == 16


def test_clips_are_written_as_mp4(tmp_path):
    prompts, media = ["a red circle moving right"], torch.rand(1, 5, 3, 32, 32)
    for found in (films(prompts, media, tmp_path / "a", fps=8), singles(prompts, media, [None], tmp_path / "b", fps=8)):
        (file,) = found
        assert file.suffix == ".mp4"
        assert file.stat().st_size > 500
    assert len(list((tmp_path / "a").iterdir())) == 1
    assert json.loads((tmp_path / "b" / "index.json").read_text())["samples"][0]["file"] == file.name


def test_pictures_are_no_films(tmp_path):
    assert films(["a"], torch.rand(1, 1, 3, 8, 8), tmp_path / "films", fps=8) == []
    assert singles(["a"], torch.rand(1, 1, 3, 8, 8), [None], tmp_path / "singles", fps=8) == []
    assert not (tmp_path / "films").exists()


def test_a_sheet_of_clips_shows_frames_from_the_first_to_the_last(tmp_path):
    # Reference: of nine frames, numbers 0, 3, 5 and 8, each enlarged to 128 pixels across.
    levels = torch.linspace(0, 0.8, 9).view(9, 1, 1, 1).expand(9, 3, 32, 64)
    sheet([("a clip", [(levels, 0.5), (levels, 0.5)])] * 2, tmp_path / "a.png")
    pixels = opened(tmp_path / "a.png")
    assert pixels.shape[1] == 2 * (4 * 128 + 2) + 2 * GAP  # before and after; one clip in a row of the sheet
    row = pixels[GAP + TEXT + 4 + 32, GAP : GAP + 512 : 64, 0]
    np.testing.assert_allclose(row / 255, [0, 0, 0.3, 0.3, 0.5, 0.5, 0.8, 0.8], atol=0.005)
