import random
from collections import Counter

import pytest

from sanarl.shapes.motion import (
    DIRECTIONS,
    HELD_OUT,
    MIX,
    STILL,
    all_prompts,
    balanced,
    parse,
    said_otherwise,
    sample,
    split,
)


def flat(captions):
    return {p for prompts in captions.values() for p in prompts}


@pytest.mark.parametrize(
    ("prompt", "kind", "objects", "motions"),
    [
        ("a red circle moving right", "moving", [("red", "circle")], ["right"]),
        (" A Red Circle standing still. ", "still", [("red", "circle")], [STILL]),
        ("two blue squares moving up", "count", [("blue", "square")] * 2, ["up", "up"]),
        (
            "a red circle moving right and a blue square moving left",
            "pair",
            [("red", "circle"), ("blue", "square")],
            ["right", "left"],
        ),
    ],
)
def test_parse_reads_every_form(prompt, kind, objects, motions):
    scene = parse(prompt)
    assert (scene.kind, list(scene.objects), list(scene.motions)) == (kind, objects, motions)


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "a red circle",
        "a red circle moving",
        "a red circle moving sideways",
        "two red circles standing still",
        "three red circles moving up",
        "a red circle moving up and a red square moving down",
        "a red circle moving up and a blue square standing still",
    ],
)
def test_parse_refuses_with_the_grammar(prompt):
    with pytest.raises(ValueError, match="not a caption of the shapes world in motion") as caught:
        parse(prompt)
    assert repr(prompt) in str(caught.value)
    assert ", ".join(DIRECTIONS) in str(caught.value)


def test_every_caption_is_read_as_its_kind():
    # Reference: counted by hand. 18 objects, 4 directions; 18 * 15 ordered pairs of two colours, 4 * 4 directions.
    counts = {kind: len(prompts) for kind, prompts in all_prompts().items()}
    assert counts == {"moving": 72, "still": 18, "count": 72, "pair": 4320}
    assert len(flat(all_prompts())) == 4482
    for kind, prompts in all_prompts().items():
        assert {parse(p).kind for p in prompts} == {kind}


def test_splits_are_disjoint_also_when_said_otherwise():
    train, dev, test = (flat(split(which)) for which in ("train", "dev", "test"))
    for a, b in ((train, dev), (train, test), (dev, test)):
        assert not a & (b | {said_otherwise(p) for p in b})
    for which in ("dev", "test"):
        assert {kind: len(prompts) for kind, prompts in split(which).items()} == HELD_OUT
    assert train | dev | test < flat(all_prompts())


def test_said_otherwise_names_the_objects_in_the_other_order():
    assert said_otherwise("a red circle moving up and a blue square moving left") == (
        "a blue square moving left and a red circle moving up"
    )
    assert said_otherwise("two red circles moving up") == "two red circles moving up"


def test_evaluation_and_training_have_the_shares_of_the_mix():
    for prompts, tolerance in ((balanced("dev", 256), 1 / 256), (sample(split("train"), 4000, random.Random(0)), 0.03)):
        counts = Counter(parse(p).kind for p in prompts)
        for kind, share in MIX.items():
            assert counts[kind] / len(prompts) == pytest.approx(share, abs=tolerance)


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="'val'; accepted: train, dev, test"):
        split("val")
