import random

import numpy as np
import pytest

from sanarl.shapes.captions import COLOURS, SHAPES, balanced, parse
from sanarl.shapes.drawing import BACKGROUND, distance, layout, render


@pytest.mark.parametrize("source", [random.Random, np.random.default_rng])
def test_equal_sources_draw_equal_pictures(source):
    first, again = (render("a red circle and a blue square", source(7)) for _ in range(2))
    assert (first.shape, first.dtype) == ((64, 64, 3), np.uint8)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, render("a red circle and a blue square", source(8)))


def test_render_refuses_other_captions():
    with pytest.raises(ValueError, match="not a caption"):
        render("a dog", random.Random(0))


@pytest.mark.parametrize("colour", COLOURS)
def test_a_picture_holds_the_exact_colour_on_a_grey_background(colour):
    image = render(f"a {colour} square", random.Random(1))
    corner = image[0, 0]
    assert corner.min() == corner.max()
    assert BACKGROUND[0] <= corner[0] <= BACKGROUND[1]
    assert (image == np.array(COLOURS[colour])).all(-1).sum() > 150  # the smallest square has 16 * 16 pixels


@pytest.mark.parametrize("shape", SHAPES)
def test_distance_gives_the_area_of_the_shape(shape):
    # Reference: pi r^2, (2 * 0.9 r)^2, and an equilateral triangle of side 2.3 r; 0.5 % for counting pixels.
    r = 100.0
    area = {"circle": np.pi * r**2, "square": (1.8 * r) ** 2, "triangle": 3**0.5 / 4 * (2.3 * r) ** 2}[shape]
    y, x = np.mgrid[-200:200, -200:200] + 0.5
    assert (distance(shape, x, y, r) < 0).sum() == pytest.approx(area, rel=0.005)


def test_layouts_keep_objects_inside_apart_and_related():
    rng = random.Random(3)
    for prompt in balanced("train", 400):
        scene = parse(prompt)
        spots = layout(scene, rng)
        assert len(spots) == len(scene.objects)
        assert all(1.2 * r + 2 <= c <= 62 - 1.2 * r for x, y, r in spots for c in (x, y))
        if scene.relation:
            (ax, ay, _), (bx, by, _) = spots
            gap = {"left of": bx - ax, "right of": ax - bx, "above": by - ay, "below": ay - by}[scene.relation]
            assert gap >= 18
        if scene.kind == "count":
            assert len({r for _, _, r in spots}) == 1


def test_a_larger_picture_is_the_same_picture():
    # Reference: averaging each 2x2 block of the double-size picture; edges differ by their smoothing only.
    small, large = (render("three green triangles", random.Random(2), size) for size in (64, 128))
    halved = large.reshape(64, 2, 64, 2, 3).mean((1, 3))
    assert np.abs(halved - small).mean() < 1.0
