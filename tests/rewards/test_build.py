"""From the names of a configuration to rewards."""

import random
import sys

import numpy as np
import pytest
import torch

from sanarl.errors import UserError
from sanarl.rewards import NOT_YET, TABLE, build
from sanarl.rewards.weights import ALIASES, needed
from sanarl.shapes import captions, clips, drawing, scoring

MINE = """
import torch
def bright(media, prompts, metadata): return media.flatten(1).mean(1)
class Dark:
    def __call__(self, media, prompts, metadata): return 1 - media.flatten(1).mean(1)
class Greedy:
    def __init__(self, model): pass
    def __call__(self, media, prompts, metadata): pass
class Failing:
    def __init__(self): raise OSError("no weights")
    def __call__(self, media, prompts, metadata): pass
class Scaled:
    def __init__(self, factor=1): self.factor = factor
    def __call__(self, media, prompts, metadata): return self.factor * media.flatten(1).mean(1)
class Plain: pass
def short(media, prompts): pass
number = 3
"""


@pytest.fixture(autouse=True)
def _import_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "my_rewards.py").write_text(MINE)
    return tmp_path / "my_rewards.py"


def page(reward_function):
    with pytest.raises(UserError) as caught:
        build(reward_function)
    return str(caught.value)


ENDPOINTS = ("unified_reward", "unifiedreward", "cosmos_reason1", "hpsv3", "dance_grpo")


@pytest.fixture
def no_weights(tmp_path, monkeypatch):
    """A working directory and a hub cache without any weights."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", sorted(TABLE))
@pytest.mark.usefixtures("no_weights")
def test_every_name_of_the_table_is_built_or_says_what_it_lacks(name):
    if not needed(name) and name not in ENDPOINTS:
        assert build({name: 0.5}).names == [name]
        return
    text = page({name: 0.5})
    if name in ENDPOINTS:
        assert f"{ALIASES.get(name, name)} is scored by a" in text
        assert "found endpoint_url None" in text
        return
    for part in ("are missing", needed(name)[0].repo, needed(name)[0].spelled(), "./reward_ckpts", "the hub's cache"):
        assert part in text
    assert text.endswith(f"{sys.executable} -m sanarl reward fetch {ALIASES.get(name, name)}")


@pytest.mark.usefixtures("no_weights")
def test_arguments_reach_the_class_and_are_checked(mine):
    assert "hpsv2_v2.0 are missing: xswu/HPSv2, HPS_v2_compressed.pt" in args_page("hpsv2", version="v2.0")
    assert "model_path: found './nowhere', which does not exist" in args_page("hpsv2", model_path="./nowhere")
    assert "repo/mine, HPS_v2.1" in args_page("hpsv2", model_path="repo/mine")
    assert "found the arguments ['verzion']; accepted: model_path, version," in args_page("hpsv2", verzion="v2.0")
    assert "found the arguments ['a']; accepted: none, it is no class" in args_page(f"{mine}:bright", a=1)
    with pytest.raises(UserError, match="reward_args: found 'hspv2'; accepted: a name of reward_function, here shapes"):
        build({"shapes": 1.0}, {"hspv2": {}})
    assert build({f"{mine}:Scaled": 1.0}, {f"{mine}:Scaled": {"factor": 3}})(
        torch.ones(1, 1, 3, 2, 2), ["a"], [{}]
    ).total.tolist() == [3]


def args_page(name, **arguments):
    with pytest.raises(UserError) as caught:
        build({name: 1.0}, {name: arguments})
    return str(caught.value)


def test_ones_own_function_and_class(mine, monkeypatch):
    mix = build({f"{mine}:bright": 1.0, f"{mine}:Dark": 2})
    scores = mix(torch.full((2, 1, 3, 4, 4), 0.25), ["a", "b"], [{}, {}])
    assert scores.total.tolist() == [1.75, 1.75]  # 0.25 + 2 * 0.75
    assert list(scores.parts) == ["bright", "Dark"]
    monkeypatch.chdir(mine.parent)
    assert build({"my_rewards:bright": 1}).names == ["bright"]


def test_two_functions_of_one_name_keep_their_full_names(mine):
    (mine.parent / "more.py").write_text(MINE)
    names = [f"{mine}:bright", f"{mine.parent / 'more.py'}:bright"]
    assert build(dict.fromkeys(names, 1.0)).names == names


def test_a_function_that_is_called_like_a_statistic_keeps_its_full_name(mine):
    # Reported as "reward" or "mean" its scores would hide the total's.
    file = mine.parent / "statistics_names.py"
    file.write_text("def reward(media, prompts, metadata):\n    return media.flatten(1).mean(1)\n\nmean = reward\n")
    names = [f"{file}:reward", f"{file}:mean"]
    assert build(dict.fromkeys(names, 1.0)).names == names


@pytest.mark.parametrize("name", [*sorted(NOT_YET), "DeQA"])
def test_rewards_that_are_not_there_yet(name):
    said = f"reward {name!r} is not available in this version: {NOT_YET[name.lower()]}; accepted: aesthetic, "
    assert page({name: 1.0}).startswith(said)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("shaeps", "reward 'shaeps' is not known; did you mean 'shapes'?; accepted: aesthetic, "),
        ("", "reward '' is not known"),
        ("no_such:thing", "there is no module no_such"),
        ("no/such.py:thing", "no/such.py: found nothing"),
        (":thing", "'' is not the name of a module"),
        ("math:", "math has no ''"),
        ("MINE:brigth", "has no 'brigth'; did you mean 'bright'?"),
        ("MINE:Greedy", "Greedy() failed; a class is built without arguments"),
        ("MINE:Failing", "OSError: no weights"),
        ("MINE:Plain", "found Plain; accepted: a function (media, prompts, metadata)"),
        ("MINE:short", "found the arguments (media, prompts); accepted: a function (media, prompts, metadata)"),
        ("MINE:number", "found int; accepted"),
    ],
)
def test_names_that_give_no_reward(mine, name, expected):
    assert expected in page({name.replace("MINE", str(mine)): 1.0})


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), "1", None, True])
def test_weights_are_finite_numbers(weight):
    assert f"found the weight {weight!r}; accepted: a finite number" in page({"shapes": weight})


def test_something_must_count(mine):
    assert "reward_function is empty" in page({})
    assert "accepted: at least one above 0" in page({"shapes": 0.0, f"{mine}:bright": -1.0})


def test_all_faults_are_listed_at_once():
    text = page({"deqa": 1.0, "shaeps": 1.0, "shapes": float("nan")})
    assert len(text.splitlines()) == 3


# ------------------------------------------------------------------ shapes


def pictures(prompts):
    drawn = [drawing.render(p, random.Random(i)) for i, p in enumerate(prompts)]
    return torch.from_numpy(np.stack(drawn)).permute(0, 3, 1, 2)[:, None].float() / 255, drawn


def test_the_shapes_reward_is_that_of_the_world():
    """Reference: sanarl.shapes.scoring on the same 8-bit pictures, right prompts and wrong ones."""
    prompts = captions.balanced("dev", 24)
    media, drawn = pictures(prompts)
    asked = prompts[5:] + prompts[:5]
    scores = build({"shapes": 1.0})(media, asked, [{}] * 24)
    expected = [scoring.score(image, prompt) for image, prompt in zip(drawn, asked, strict=True)]
    torch.testing.assert_close(scores.total, torch.tensor([e["reward"] for e in expected]))
    assert scores.parts["shapes/strict"].tolist() == [e["strict"] for e in expected]
    assert build({"shapes": 1.0})(media, prompts, [{}] * 24).total.min() == 1


def test_pixels_are_rounded_and_clamped_as_a_saved_picture_would_be():
    media, _ = pictures(["a red circle"])
    nudged = (media + 0.4 / 255) * 1.0
    assert build({"shapes": 1.0})(nudged, ["a red circle"], [{}]).total.tolist() == [1]
    assert build({"shapes": 1.0})(media * 1.2 - 0.1, ["a red circle"], [{}]).total.tolist() == [1]


def test_quoted_text_is_no_part_of_a_caption():
    media, _ = pictures(["a red circle"])
    for prompt in ('a red circle "NO 7"', '"STOP" a red circle', '"a" a red circle ""'):
        assert build({"shapes": 1.0})(media, [prompt], [{}]).total.tolist() == [1]


def test_shapes_scores_clips_by_what_moves_where():
    # Reference: the clip that the renderer drew is right; played backwards half of the reward is lost.
    prompt = "a red circle moving right"
    clip = torch.from_numpy(clips.render(prompt, random.Random(0))).permute(0, 3, 1, 2)[None] / 255
    reward = build({"shapes": 1.0})
    assert reward(clip, [prompt], [{}]).total.tolist() == [1]
    assert reward(clip.flip(1), [prompt], [{}]).total.tolist() == [0.5]
    assert reward(clip.flip(1), [prompt.replace("right", "left")], [{}]).total.tolist() == [1]


@pytest.mark.parametrize(
    ("media", "prompts", "expected"),
    [
        (
            torch.zeros(2, 5, 3, 64, 64),
            ["a red circle"] * 2,
            "reward 'shapes': prompt 'a red circle' cannot be scored: not a caption of the shapes world in motion",
        ),
        (
            torch.zeros(1, 2, 3, 64, 64),
            ["a red circle moving up"],
            "expected a clip (F, H, H, 3) of at least 3 frames",
        ),
        (torch.full((1, 1, 3, 64, 64), torch.nan), ["a red circle"], "found NaN or infinity in the picture for prompt"),
        (torch.zeros(2, 1, 3, 64, 64), ["a red circle", "a cat"], "prompt 'a cat' cannot be scored: not a caption"),
    ],
)
def test_what_shapes_cannot_score(media, prompts, expected):
    with pytest.raises(UserError) as caught:
        build({"shapes": 1.0})(media, prompts, [{} for _ in prompts])
    assert expected in str(caught.value)
