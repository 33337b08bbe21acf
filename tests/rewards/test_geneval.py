"""GenEval: rules by hand on scripted detections, colours by a small CLIP, detectors of the real classes."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPModel, CLIPProcessor

from sanarl.errors import UserError
from sanarl.rewards import frames as media_frames
from sanarl.rewards.mix import Mix
from sanarl.rewards.scorers.geneval import COLORS, ClipColours, Detection, GenEval, crop
from sanarl.rewards.scorers.geneval.rules import relations


def thing(label, x=0.0, y=0.0, score=0.95, size=10.0, mask=None):
    return Detection(label, score, (x, y, x + size, y + size), mask)


class Scripted:
    """A detector that gives the scene whose number is the brightness of a picture's first pixel."""

    labels = ("cat", "dog", "cup")

    def __init__(self, scenes):
        self.scenes = scenes

    def __call__(self, frames):
        return [self.scenes[int(frame[0, 0, 0])] for frame in frames]


def by_box(_label, crops):
    """A classifier that reads the colour from a crop's own pixels: red, green or blue, whichever is brightest."""
    return [("red", "green", "blue")[int(one.float().mean((1, 2)).argmax())] for one in crops]


def scenes_as_media(count):
    media = torch.zeros(count, 1, 3, 40, 120)
    media[:, :, 0, :, :60] = 1  # the left half is red, the right one blue
    media[:, :, 2, :, 60:] = 1
    media[:, 0, :, 0, 0] = torch.arange(count)[:, None] / 255
    return media


def asked(tag, *include, **more):
    return {"tag": tag, "include": list(include), **more}


CAT, DOG = {"class": "cat", "count": 1}, {"class": "dog", "count": 1}
RED_CAT, BLUE_DOG = CAT | {"color": "red"}, DOG | {"color": "blue"}
RIGHT_DOG = DOG | {"position": ["right of", 0]}
PAIR = [thing("cat", 5), thing("dog", 80)]

CASES = [
    # what is there, what is asked: graded, strict, published
    ([thing("cat")], asked("single_object", CAT), 1, 1, 1),
    ([], asked("single_object", CAT), 0, 0, 0),
    ([thing("cat"), thing("cat", 50)], asked("single_object", CAT), 0, 0, 1),  # one too many: 1 - 1 / 1
    ([thing("cat")] * 3, asked("single_object", CAT), -1, 0, 1),  # 1 - 2 / 1
    ([thing("cat", score=0.3)], asked("single_object", CAT), 0, 0, 0),  # not above 0.3
    ([thing("cat", score=0.31)], asked("single_object", CAT), 1, 1, 1),
    (PAIR, asked("two_object", CAT, DOG), 1, 1, 1),
    ([PAIR[0]], asked("two_object", CAT, DOG), 0.5, 0, 0),
    ([thing("cat", 20 * i) for i in range(3)], asked("counting", {"class": "cat", "count": 4}), 0.75, 0, 0),
    ([thing("cat", 20 * i, score=0.9) for i in range(4)], asked("counting", {"class": "cat", "count": 4}), 0, 0, 0),
    ([thing("cat", i) for i in range(20)], asked("counting", {"class": "cat", "count": 16}), 1, 1, 1),  # at most 16
    (
        [thing("cat", 20 * i) for i in range(3)],
        asked("counting", {"class": "cat", "count": 2}, exclude=[{"class": "cat", "count": 3}]),
        0.5,
        0,
        0,
    ),
    (PAIR, asked("colors", RED_CAT), 1, 1, 1),
    (PAIR, asked("colors", CAT | {"color": "blue"}), 0.5, 0, 0),  # the count is right, the colour is not
    ([], asked("colors", RED_CAT), 0, 0, 0),
    ([thing("cat", 5), thing("cat", 80)], asked("colors", {"class": "cat", "count": 2, "color": "red"}), 0.75, 0, 0),
    (PAIR, asked("color_attr", RED_CAT, BLUE_DOG), 1, 1, 1),
    (PAIR, asked("color_attr", RED_CAT, DOG | {"color": "red"}), 0.75, 0, 0),
    (PAIR, asked("position", CAT, RIGHT_DOG), 1, 1, 1),
    (PAIR[::-1], asked("position", DOG, CAT | {"position": ["left of", 0]}), 1, 1, 1),
    (PAIR, asked("position", CAT, DOG | {"position": ["left of", 0]}), 0.75, 0, 0),  # 1, 1, and 0 beside 1
    ([PAIR[1]], asked("position", CAT, RIGHT_DOG), 1 / 3, 0, 0),  # 0, 1, 0: the target is missing
    ([PAIR[0]], asked("position", CAT, RIGHT_DOG), 1 / 3, 0, 0),  # 1, 0, 0: the object is missing
    ([*PAIR, thing("dog", 100, score=0.5)], asked("position", CAT, RIGHT_DOG), 1 / 3, 0, 1),  # the surest dog is right
    (PAIR, asked("position", RED_CAT, RIGHT_DOG | {"color": "red"}), 0.75, 0, 0),  # 1, 1, 1, 0: position is not asked
]


def run(cases, **given):
    scorer = GenEval(detector=Scripted([c[0] for c in cases]), classifier=by_box, **given)
    return scorer(scenes_as_media(len(cases)), [f"prompt {i}" for i in range(len(cases))], [c[1] for c in cases])


@pytest.mark.parametrize("batch_size", [1, 8])
def test_the_rules(batch_size):
    """Reference: both sets of rules worked out by hand, see CASES."""
    scores = run(CASES, batch_size=batch_size)
    assert {str(v.dtype) for v in scores.values()} == {"torch.float32"}
    assert scores["reward"].tolist() == pytest.approx([c[2] for c in CASES])
    assert scores["reward"].max() <= 1
    assert scores["gen_eval_strict"].tolist() == [c[3] for c in CASES]
    assert scores["gen_eval_reward"].tolist() == [c[4] for c in CASES]


def test_only_strict_leaves_the_published_verdict_out():
    scores = run(CASES, only_strict=True)
    assert list(scores) == ["reward", "gen_eval_strict"]
    assert scores["reward"].tolist() == pytest.approx([c[2] for c in CASES])
    assert scores["gen_eval_strict"].tolist() == [c[3] for c in CASES]


@pytest.mark.parametrize(
    ("own", "asked_for", "is_there"), [(None, True, 0), (None, False, 1), (False, True, 1), (True, False, 0)]
)
def test_training_asks_for_the_strict_verdict_alone_unless_the_scorer_was_made_otherwise(own, asked_for, is_there):
    scorer = GenEval(detector=Scripted([[thing("cat")]]), classifier=by_box, only_strict=own)
    mix = Mix({"geneval": (1.0, scorer)})
    found = mix(scenes_as_media(1), ["a cat"], [asked("single_object", CAT)], only_strict=asked_for)
    assert list(found.parts) == ["geneval", "geneval/gen_eval_strict", "geneval/gen_eval_reward"][: 2 + is_there]


def test_clips_and_no_pictures_and_the_mix():
    scorer = GenEval(detector=Scripted([[thing("cat")], []]), classifier=by_box)
    clip = scenes_as_media(2).transpose(0, 1)
    mix = Mix({"geneval": (2.0, scorer)})(clip, ["a cat"], [asked("single_object", CAT)])
    assert mix.total.tolist() == [1.0]
    assert list(mix.parts) == ["geneval", "geneval/gen_eval_strict", "geneval/gen_eval_reward"]
    assert scorer(clip[:0], [], [])["reward"].shape == (0,)


def test_relations():
    """Reference: the direction by its angle, with boxes too small to shorten the offset."""
    centre = thing("cat", 0, 0, size=0.001)
    for degrees in range(1, 360, 8):
        x, y = 10 * math.cos(math.radians(degrees)), 10 * math.sin(math.radians(degrees))
        held = relations(thing("dog", x, y, size=0.001), centre)
        expected = {
            "right of": math.cos(math.radians(degrees)) > 0.5,
            "left of": math.cos(math.radians(degrees)) < -0.5,
            "below": math.sin(math.radians(degrees)) > 0.5,
            "above": math.sin(math.radians(degrees)) < -0.5,
        }
        assert held == {name for name, true in expected.items() if true}, degrees
    assert relations(thing("a", 2, 0), thing("b", 0, 0)) == set()  # nearer than a tenth of both widths
    assert relations(thing("a", 2.1, 0), thing("b", 0, 0)) == set()  # 0.1 of 2.1 is no direction
    assert relations(thing("a", 4.1, 0), thing("b", 0, 0)) == {"right of"}  # 2.1 of 4.1


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, "found tag None; accepted: single_object, two_object"),
        ({"tag": "colour"}, "found tag 'colour'"),
        ({"tag": "colors"}, "found include None; accepted: a list of {class, count, color?, position?}"),
        (asked("colors"), "found include []"),
        (asked("colors", {"count": 1}), "accepted: an object with the key class"),
        (asked("colors", {"class": "cat"}), "found the count None of 'cat'"),
        (asked("colors", {"class": "cat", "count": 0}), "found the count 0 of 'cat'"),
        (asked("colors", {"class": "cow", "count": 1}), "the detector knows no 'cow'; accepted: cat, dog, cup"),
        (asked("colors", CAT | {"color": "teal"}), "found color 'teal'; accepted: red, orange"),
        (asked("position", CAT, DOG | {"position": ["near", 0]}), "found position ['near', 0]"),
        (asked("position", CAT | {"position": ["above", 0]}, DOG), "and an earlier row"),
    ],
)
def test_metadata_that_are_refused(metadata, expected):
    with pytest.raises(UserError) as caught:
        run([([], metadata)])
    assert str(caught.value).startswith("prompt 'prompt 0': metadata for GenEval: ")
    assert expected in str(caught.value)


# ------------------------------------------------------------------ colours


def published_colour(folder, picture, box, mask, label):
    """Reference: Pillow's composite and crop, the processor, and each sentence encoded alone."""
    image = Image.fromarray(picture.permute(1, 2, 0).numpy())
    if mask is not None:
        image = Image.composite(image, Image.new("RGB", image.size, "#999"), Image.fromarray(mask.numpy()))
    model, processor = CLIPModel.from_pretrained(folder).eval(), CLIPProcessor.from_pretrained(folder)
    with torch.no_grad():
        seen = model.get_image_features(**processor(images=[image.crop(box)], return_tensors="pt")).pooler_output[0]
        likeness = []
        for colour in COLORS:
            sentences = [f"a photo of a {colour} {label}", f"a photo of a {colour}-colored {label}"]
            sentences.append(f"a photo of a {colour} object")
            vectors = []
            for sentence in sentences:
                text = model.get_text_features(**processor(text=[sentence], return_tensors="pt")).pooler_output[0]
                vectors.append(text / text.norm())
            mean = torch.stack(vectors).mean(0)
            likeness.append((seen @ (mean / mean.norm())).item())
    return COLORS[int(np.argmax(likeness))]


def test_colours_are_those_of_the_published_classifier(tiny_clip, pictures):
    classify = ClipColours(str(tiny_clip))
    mask = torch.zeros(40, 56, dtype=torch.bool)
    mask[5:30, 10:40] = True
    boxes = [(0.0, 0.0, 56.0, 40.0), (3.4, 2.6, 20.0, 33.0), (10.0, 5.0, 40.0, 30.0)]
    found = [Detection("cat", 1, boxes[0]), Detection("cat", 1, boxes[1]), Detection("cat", 1, boxes[2], mask)]
    answers, expected = [], []
    for picture in media_frames.eight_bit(pictures[:, 0]):
        answers += classify("cat", [crop(picture, one) for one in found])
        expected += [published_colour(tiny_clip, picture, one.box, one.mask, "cat") for one in found]
    assert answers == expected
    assert len(set(expected)) > 1


def test_a_crop_of_nothing_is_a_pixel():
    picture = torch.zeros(3, 20, 30, dtype=torch.uint8)
    assert crop(picture, Detection("cat", 1, (40, 5, 41, 5))).shape == (3, 1, 1)


def test_missing_weights_and_wrong_detectors_are_named(tmp_path, monkeypatch, tiny_clip):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="facebook/mask2former-swin-small-coco-instance"):
        GenEval(classifier=by_box)
    with pytest.raises(UserError, match=r"no detector 'maskrcnn'.*accepted: \['fasterrcnn"):
        GenEval(detector="torchvision:maskrcnn", classifier=by_box)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(UserError, match=r"maskrcnn_resnet50_fpn_v2_coco-73cbd019\.pth\n  searched: reward_ckpts"):
        GenEval(detector="torchvision:maskrcnn_resnet50_fpn_v2", classifier=by_box)
    with pytest.raises(UserError, match="found model_path 'me/mine'; accepted: a folder that holds both models"):
        GenEval(model_path="me/mine")
    with pytest.raises(UserError, match="openai/clip-vit-large-patch14"):
        GenEval(model_path=str(tmp_path), detector=Scripted([]))
    with pytest.raises(UserError, match="holds no detector"):
        GenEval(detector=str(tiny_clip), classifier=by_box)
