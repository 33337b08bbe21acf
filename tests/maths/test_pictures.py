"""Reference: pictures whose statistics follow by hand, colorsys, scipy's filters."""

import colorsys

import numpy as np
import pytest
import torch
from scipy import ndimage

from sanarl.maths.pictures import NAMES, statistics


def of(*pictures):
    """Statistics by name of one sample of some frames (3, H, W)."""
    found = statistics(torch.stack(pictures)[None])[0].tolist()
    assert len(found) == len(NAMES) - (len(pictures) == 1)
    return dict(zip(NAMES, found, strict=False))


def grey(values):
    return torch.as_tensor(values).float().expand(3, *np.shape(values))


def test_a_blank_picture_has_nothing():
    for level in (0.0, 0.3, 1.0):
        assert of(grey(np.full((8, 8), level))) == pytest.approx(dict.fromkeys(NAMES[:-1], 0.0), abs=1e-6)


def test_a_step_from_black_to_white():
    # Columns 0-4 black, 5-9 white: the kernel fits 8 x 8 times, 2 of its 8 columns touch the step. Half of the
    # picture is black and half white: one bit, deviation 1/2. The Laplacian is 1, -1 in those columns, 0 in 6: 2 / 8.
    step = np.zeros((10, 10))
    step[:, 5:] = 1
    expected = {"edge_density": 0.25, "colour_entropy": 1.0, "saturation": 0.0, "sharpness": 0.25, "contrast": 0.5}
    assert of(grey(step)) == pytest.approx(expected)


def test_a_chess_board():
    # The Laplacian is -4 on white and +4 on black: variance 16. The two halves of Sobel's kernel cancel.
    board = np.indices((10, 10)).sum(0) % 2
    expected = {"edge_density": 0.0, "colour_entropy": 1.0, "saturation": 0.0, "sharpness": 16.0, "contrast": 0.5}
    assert of(grey(board)) == pytest.approx(expected)


def test_saturation_is_that_of_hsv():
    picture = torch.rand(3, 6, 5, generator=torch.Generator().manual_seed(0))
    expected = np.mean([colorsys.rgb_to_hsv(*pixel)[1] for pixel in picture.flatten(1).T.tolist()])
    assert of(picture)["saturation"] == pytest.approx(expected, rel=1e-6)


def test_filters_are_scipys():
    picture = torch.rand(3, 9, 11, generator=torch.Generator().manual_seed(1))
    luma = (picture.double() * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(0).numpy()
    inner = (slice(1, -1), slice(1, -1))
    gradient = np.hypot(ndimage.sobel(luma, 0), ndimage.sobel(luma, 1))[inner] / 4
    found = of(picture)
    assert found["edge_density"] == (gradient > 0.1).mean()
    assert found["sharpness"] == pytest.approx(ndimage.laplace(luma)[inner].var(), rel=1e-5)
    assert found["contrast"] == pytest.approx(luma.std(), rel=1e-5)


def test_colours_and_frames():
    # 4 colours in equal shares are 2 bits, whether in one frame or in two; other statistics are means over frames.
    colours = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0], [1.0, 1.0, 1.0]])
    stripes = colours.T[:, :, None].expand(3, 4, 4)
    assert of(stripes)["colour_entropy"] == pytest.approx(2)
    halves = [c.view(3, 1, 1).expand(3, 8, 8) for c in colours[[0, 3]]]
    found = of(*halves)
    assert (found["colour_entropy"], found["saturation"]) == pytest.approx((1.0, 0.5))
    noise = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(2))
    assert 8.8 < of(noise)["colour_entropy"] <= 9


def test_motion_is_what_changes_between_frames():
    # By hand: a square of 2 x 2 white pixels on 8 x 8 black ones that jumps by its width leaves 4 pixels and enters 4,
    # 8 / 64 a step; then it rests: the mean over two steps is 4 / 64. Blinking, all pixels change by 1.
    frames = torch.zeros(3, 3, 8, 8)
    frames[0, :, :2, :2] = frames[1, :, :2, 2:4] = frames[2, :, :2, 2:4] = 1
    assert of(*frames)["motion"] == pytest.approx(4 / 64)
    assert of(*torch.stack([torch.zeros(3, 8, 8), torch.ones(3, 8, 8)]))["motion"] == pytest.approx(1)
    assert of(*frames[:1].expand(5, -1, -1, -1))["motion"] == 0


def test_samples_do_not_mix():
    media = torch.rand(3, 2, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(statistics(media)[1:2], statistics(media[1:2]), rtol=1e-6, atol=1e-9)
