import random

import numpy as np
import pytest

from sanarl.shapes.clips import FRAMES, render, score
from sanarl.shapes.motion import all_prompts, sample, split
from sanarl.shapes.scoring import detect

RIGHT, STILL = "a red circle moving right", "a red circle standing still"
PAIR = "a red circle moving up and a blue square moving left"


def clip(prompt, seed=0, **choices):
    return render(prompt, random.Random(seed), **choices)


def reward(media, prompt):
    return score(media, prompt)["reward"]


def test_clips_drawn_for_their_caption_score_one():
    rng = random.Random(0)
    prompts = [p for kind in all_prompts() for p in rng.sample(all_prompts()[kind], 12)]
    for prompt in prompts:
        assert score(render(prompt, rng), prompt) == {"reward": 1.0, "strict": 1.0}, prompt


@pytest.mark.parametrize("choices", [{"size": 96}, {"frames": 5}, {"frames": 17}])
def test_other_sizes_and_lengths_score_one(choices):
    for prompt in (RIGHT, STILL, PAIR, "two green triangles moving down"):
        assert score(clip(prompt, **choices), prompt)["strict"] == 1.0


def test_equal_seeds_give_equal_clips():
    assert clip(RIGHT).shape == (FRAMES, 64, 64, 3)
    np.testing.assert_array_equal(clip(RIGHT, 3), clip(RIGHT, 3))
    assert (clip(RIGHT, 3) != clip(RIGHT, 4)).any()


def test_objects_move_at_a_constant_speed_inside_the_picture():
    for seed in range(10):
        frames = [detect(frame)[0] for frame in clip(RIGHT, seed)]
        x, y = np.array([(f.x, f.y) for f in frames]).T
        steps = np.diff(x)
        assert 2 - 0.15 < steps.mean() < 3.5 + 0.15  # 16 to 28 pixels in 8 steps
        assert np.ptp(steps) < 0.5  # centroids of whole pixels
        assert np.ptp(y) < 0.5
        assert len({f.area // 40 for f in frames}) <= 2  # nothing is cut off


# References below: the formula by hand. Pixels move centroids by a tenth or so, hence the tolerance.


def test_the_wrong_direction_costs_half():
    for prompt in ("a red circle moving left", "a red circle moving up", STILL):
        assert reward(clip(RIGHT), prompt) == pytest.approx(0.5, abs=0.02)
    assert reward(clip(STILL), RIGHT) == pytest.approx(0.5, abs=0.02)


def test_the_wrong_colour_earns_for_the_shape_alone_and_nothing_for_its_motion():
    # credit 0.25 each frame: content 2 * 0.25 / 2; the motion of an object of another colour does not count
    assert reward(clip(RIGHT), "a blue circle moving right") == pytest.approx(0.25 * 0.5, abs=0.02)


def test_the_wrong_shape_moving_rightly():
    assert reward(clip(RIGHT), "a red square moving right") == pytest.approx(0.5, abs=0.02)


def test_one_of_two_motions():
    assert reward(clip(PAIR), "a red circle moving up and a blue square moving right") == pytest.approx(0.75, abs=0.02)
    swapped = "a red circle moving left and a blue square moving up"
    assert reward(clip(PAIR), swapped) == pytest.approx(0.5, abs=0.02)


def test_one_of_two_objects():
    # content 2 * 1 / (2 + 1), motion 1/2
    asked = "a red circle moving right and a blue square moving left"
    assert reward(clip(RIGHT), asked) == pytest.approx(2 / 3 * 0.75, abs=0.02)


def test_a_short_way_earns_in_proportion():
    base = render(STILL, random.Random(0))[0]
    for pixels in (4, 8):
        moved = np.stack([np.roll(base, round(pixels * i / 8), 1) for i in range(9)])
        way = np.polyfit([0, 0.25, 0.5, 0.75, 1], [round(pixels * i / 8) for i in (0, 2, 4, 6, 8)], 1)[0]
        assert reward(moved, RIGHT) == pytest.approx(0.5 + 0.5 * min(way / 8, 1), abs=0.02)
    assert reward(np.stack([np.roll(base, i // 2, 1) for i in range(9)]), STILL) == pytest.approx(1.0)


def test_the_order_of_the_frames_matters():
    assert reward(clip(RIGHT)[::-1], RIGHT) == pytest.approx(0.5, abs=0.02)
    assert reward(clip(RIGHT)[::-1], "a red circle moving left") == pytest.approx(1.0)


def test_a_shown_clip_of_another_caption_earns_little():
    rng = random.Random(0)
    prompts, others = (sample(split("train"), 100, rng) for _ in range(2))
    assert np.mean([reward(render(p, rng), o) for p, o in zip(prompts, others, strict=True)]) < 0.2


def test_noise_earns_nothing():
    noise = np.random.default_rng(0).integers(0, 256, (9, 64, 64, 3), dtype=np.uint8)
    assert score(noise, RIGHT) == {"reward": 0.0, "strict": 0.0}


def test_what_is_no_clip_is_refused():
    for shape in ((64, 64, 3), (2, 64, 64, 3)):
        with pytest.raises(ValueError, match="expected a clip"):
            score(np.zeros(shape, np.uint8), RIGHT)
