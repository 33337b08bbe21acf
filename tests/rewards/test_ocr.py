"""The OCR reward on rendered text, read offline with the models that rapidocr ships."""

import random
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from sanarl.errors import UserError
from sanarl.rewards import build
from sanarl.rewards.scorers.ocr import Ocr, levenshtein, similarity, target


@pytest.fixture(scope="module")
def ocr():
    return Ocr(threads=1)


def written(text, size=(96, 160)):
    image = Image.new("RGB", size[::-1], "white")
    ImageDraw.Draw(image).text((8, 28), text, fill="black", font=ImageFont.load_default(26))
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None].float() / 255  # (1, 3, H, W)


def test_rendered_text(ocr):
    """Reference: what was drawn; "STOX" is one letter off "STOP", and nothing is three of four characters off."""
    media = torch.stack([written("STOP"), written("STOX"), written("")])
    scores = ocr(media, ['a sign that says "Stop"', 'a sign that says "STOP"', 'a sign "ST OP" of "x"'], [{}] * 3)
    assert scores.dtype == torch.float32
    assert scores.tolist() == pytest.approx([1.0, 0.75, 0.2])  # of 0 to 1
    assert [
        ocr(media[i : i + 1], [p], [{}]).item() for i, p in enumerate(['"Stop"', '"STOP"', '"ST OP"'])
    ] == scores.tolist()


def test_clips_are_the_mean_over_frames(ocr):
    clip = torch.cat([written("STOP"), written("")])[None]
    assert ocr(clip, ['"STOP"'], [{}]).tolist() == pytest.approx([0.5])


def test_it_is_built_by_name():
    scores = build({"ocr": 2.0}, {"ocr": {"threads": 1}})(written("YES")[None], ['"yes"'], [{}])
    assert scores.total.tolist() == [2.0]


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [
        ("", "NEW YORK CITY", 1 - 11 / 13),
        ("new york city!", "NEW YORK CITY", 1),
        ("NewYorkCity", "NEW YORK CITY", 1),
        ("NEW YORK", "NEW YORK CITY", 1 - 4 / 13),
        ("a long text that has nothing of it", "xyz", 0),
        ("", "", 1),
        ("anything", " ", 1),
        ("ÄRGER", "ärger", 1),
    ],
)
def test_similarity(found, wanted, expected):
    """Reference: the rule, by hand."""
    assert similarity(found, wanted) == pytest.approx(expected)


def test_levenshtein():
    """Reference: the recursive definition."""

    def defined(a, b):
        @cache
        def d(i, j):
            if not i or not j:
                return i + j
            return min(d(i - 1, j) + 1, d(i, j - 1) + 1, d(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

        return d(len(a), len(b))

    rng = random.Random(0)
    for _ in range(200):
        a, b = ("".join(rng.choices("abc", k=rng.randrange(8))) for _ in range(2))
        assert levenshtein(a, b) == defined(a, b)


def test_target():
    """Reference: the first pair of quotes; an open one reaches to the end, as elsewhere."""
    assert target('a "RED" sign, not "BLUE"') == "RED"
    assert target('says "RED') == "RED"
    for prompt in ("a red sign", "a “red” sign", "it's 'red'"):
        with pytest.raises(UserError, match="has no text in straight double quotes"):
            target(prompt)


def test_a_prompt_without_quotes_is_named(ocr):
    with pytest.raises(UserError, match="prompt 'no quotes' has no text"):
        ocr(torch.stack([written("A"), written("B")]), ['"A"', "no quotes"], [{}, {}])


def test_engines(monkeypatch):
    with pytest.raises(UserError, match="found the engine 'tesseract'; accepted: rapidocr, paddleocr"):
        Ocr(engine="tesseract")
    monkeypatch.setitem(__import__("sys").modules, "paddleocr", None)
    with pytest.raises(UserError, match=r"ocr needs the package paddleocr<3 .*\n  to install it: .* -m pip install"):
        Ocr(engine="paddleocr")
