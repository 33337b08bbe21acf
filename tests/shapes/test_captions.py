import random
from collections import Counter

import pytest

from sanarl.shapes.captions import (
    COLOURS,
    HELD_OUT,
    MIX,
    RELATIONS,
    SHAPES,
    all_prompts,
    balanced,
    parse,
    said_otherwise,
    sample,
    shares,
    split,
)


def flat(captions):
    return [p for prompts in captions.values() for p in prompts]


@pytest.mark.parametrize(
    ("prompt", "kind", "objects", "relation"),
    [
        ("a red circle", "single", [("red", "circle")], None),
        ("two red circles", "count", [("red", "circle")] * 2, None),
        ("three black triangles", "count", [("black", "triangle")] * 3, None),
        ("a red circle and a blue square", "pair", [("red", "circle"), ("blue", "square")], None),
        ("a red circle left of a blue square", "position", [("red", "circle"), ("blue", "square")], "left of"),
        ("  A Red Circle BELOW a blue square. ", "position", [("red", "circle"), ("blue", "square")], "below"),
    ],
)
def test_parse_reads_every_form(prompt, kind, objects, relation):
    scene = parse(prompt)
    assert (scene.kind, list(scene.objects), scene.relation) == (kind, objects, relation)


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "red circle",
        "a pink circle",
        "a red hexagon",
        "a red circles",
        "two red circle",
        "four red circles",
        "two red circles and a blue square",
        "a red circle and a red square",
        "a red circle beside a blue square",
        "a red circle left of",
        "a red circle and a blue square and a green triangle",
    ],
)
def test_parse_refuses_with_the_grammar(prompt):
    with pytest.raises(ValueError, match="not a caption of the shapes world") as caught:
        parse(prompt)
    assert repr(prompt) in str(caught.value)
    for word in ("two|three", "left of|right of|above|below", *COLOURS, *SHAPES):
        assert word in str(caught.value)


def test_every_caption_is_read_as_its_kind():
    # Reference: counted by hand. 6 * 3 objects; 2 numbers; 18 * 15 ordered pairs of two colours; 4 relations.
    assert {kind: len(prompts) for kind, prompts in all_prompts().items()} == {
        "single": 18,
        "count": 36,
        "pair": 270,
        "position": 1080,
    }
    assert len(set(flat(all_prompts()))) == 1404
    for kind, prompts in all_prompts().items():
        assert {parse(p).kind for p in prompts} == {kind}


def test_splits_are_disjoint_also_when_said_otherwise():
    train, dev, test = (set(flat(split(name))) for name in ("train", "dev", "test"))
    for held in (dev, test):
        assert not train & (held | {said_otherwise(p) for p in held})
    assert not test & (dev | {said_otherwise(p) for p in dev})
    assert train | dev | test <= set(flat(all_prompts()))


@pytest.mark.parametrize("name", ["dev", "test"])
def test_held_out_splits_have_the_stated_sizes(name):
    assert {kind: len(prompts) for kind, prompts in split(name).items()} == HELD_OUT


def test_the_splits_never_move():
    # Reference: written down on the day the packaged weights were trained on this split; the weights have seen train.
    assert {kind: len(prompts) for kind, prompts in split("train").items()} == {
        "single": 10,
        "count": 20,
        "pair": 192,
        "position": 952,
    }
    assert split("dev")["single"] == ("a yellow triangle", "a yellow circle", "a red circle", "a black square")
    assert split("test")["single"] == ("a red triangle", "a black circle", "a yellow square", "a green circle")
    assert split("train")["position"][0] == "a red triangle left of a green circle"


def test_training_sees_every_word():
    words = {word for p in flat(split("train")) for word in p.split()}
    assert words == {word for p in flat(all_prompts()) for word in p.split()}


def test_split_refuses_other_names():
    with pytest.raises(ValueError, match="accepted: train, dev, test"):
        split("validation")


@pytest.mark.parametrize("relation", RELATIONS)
def test_said_otherwise_is_its_own_inverse(relation):
    prompt = f"a red circle {relation} a blue square"
    assert said_otherwise(prompt) != prompt
    assert said_otherwise(said_otherwise(prompt)) == prompt


def test_said_otherwise_by_hand():
    assert said_otherwise("a red circle left of a blue square") == "a blue square right of a red circle"
    assert said_otherwise("a red circle and a blue square") == "a blue square and a red circle"
    assert said_otherwise("two red circles") == "two red circles"


@pytest.mark.parametrize("n", [0, 1, 3, 20, 128, 256, 511])
def test_shares_add_up_and_stay_within_one_of_the_mix(n):
    counts = shares(n)
    assert sum(counts.values()) == n
    assert all(abs(counts[kind] - n * share) < 1 for kind, share in MIX.items())


def test_balanced_uses_every_caption_of_a_kind_alike():
    prompts = balanced("dev", 256)
    assert Counter(parse(p).kind for p in prompts) == {"single": 51, "count": 64, "pair": 51, "position": 90}
    assert prompts == balanced("dev", 256)
    for captions in split("dev").values():
        uses = [prompts.count(p) for p in captions]
        assert max(uses) - min(uses) <= 1


def test_sample_follows_the_mix_and_the_seed():
    train = split("train")
    prompts = sample(train, 4000, random.Random(0))
    assert prompts == sample(train, 4000, random.Random(0))
    assert set(prompts) <= set(flat(train))
    share = Counter(parse(p).kind for p in prompts)
    # Tolerance: four standard errors of a share of at most 0.35 in 4000 draws.
    assert all(abs(share[kind] / 4000 - MIX[kind]) < 4 * (0.35 * 0.65 / 4000) ** 0.5 for kind in MIX)
