"""Reference: sums worked out by hand."""

import sys

import pytest
import torch

from sanarl.errors import UserError
from sanarl.rewards.mix import Mix, RewardError

PROMPTS = ["a", "bb", "ccc"]
MEDIA = torch.rand(3, 1, 3, 4, 4)


def length(_media, prompts, _metadata):
    return torch.tensor([float(len(p)) for p in prompts])


def brightness(media, _prompts, _metadata):
    return media.flatten(1).mean(1)


def run(parts, prompts=PROMPTS):
    return Mix(parts)(MEDIA[: len(prompts)], prompts, [{} for _ in prompts])


def giving(result):
    return lambda _media, _prompts, _metadata: result


def page(result):
    with pytest.raises(RewardError) as caught:
        run({"mine": (1.0, giving(result))})
    assert isinstance(caught.value, UserError)
    assert str(caught.value).startswith("reward 'mine")
    return str(caught.value)


def test_the_weighted_sum_and_its_parts():
    scores = run({"length": (2.0, length), "brightness": (-0.5, brightness), "unused": (0.0, length)})
    bright = MEDIA.flatten(1).mean(1)
    torch.testing.assert_close(scores.total, 2 * torch.tensor([1.0, 2.0, 3.0]) - 0.5 * bright)
    assert list(scores.parts) == ["length", "brightness", "unused"]
    torch.testing.assert_close(scores.parts["brightness"], bright)
    assert run({"length": (1000.0, length)}).total.tolist() == [1000.0, 2000.0, 3000.0]  # nothing is clipped


@pytest.mark.parametrize("main", ["reward", "mine", "anything"])
def test_a_dict_counts_once(main):
    others = {} if main == "anything" else {"strict": torch.tensor([0, 1, 0])}
    scores = run({"mine": (3.0, giving({**others, main: torch.tensor([1.0, 2.0, 3.0])}))})
    assert scores.total.tolist() == [3, 6, 9]
    assert scores.parts["mine"].tolist() == [1, 2, 3]
    assert list(scores.parts) == ["mine", *(f"mine/{k}" for k in others)]


def test_reward_comes_before_the_own_name():
    scores = run({"mine": (1.0, giving({"mine": torch.zeros(3), "reward": torch.ones(3)}))})
    assert scores.total.tolist() == [1, 1, 1]
    assert scores.parts["mine/mine"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.bool])
def test_any_real_dtype_becomes_float32(dtype):
    scores = run({"mine": (1.0, giving(torch.ones(3, dtype=dtype)))})
    assert scores.total.dtype == scores.parts["mine"].dtype == torch.float32


def test_scores_carry_no_graph_and_no_shared_memory():
    held = torch.ones(3, requires_grad=True)
    scores = run({"mine": (1.0, giving(held))})
    assert not scores.total.requires_grad
    scores.parts["mine"].zero_()
    assert held.tolist() == [1, 1, 1]


def test_metadata_reaches_the_reward():
    def tag(_media, _prompts, metadata):
        return torch.tensor([m["tag"] for m in metadata])

    scores = Mix({"tag": (1.0, tag)})(MEDIA, PROMPTS, [{"tag": 1.0}, {"tag": 2.0}, {"tag": 3.0}])
    assert scores.total.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (torch.ones(2), "found a float32 tensor of shape (2,) (first prompt 'a'); accepted: a tensor of shape (3,)"),
        (torch.ones(3, 1), "found a float32 tensor of shape (3, 1)"),
        (torch.ones(()), "found a float32 tensor of shape ()"),
        (torch.ones(3, dtype=torch.complex64), "found a complex64 tensor"),
        ([1.0, 2.0, 3.0], "found list"),
        (None, "found NoneType"),
        (torch.tensor([1.0, torch.nan, torch.inf]), "found nan for prompt 'bb' (2 of 3 rows)"),
        (torch.tensor([1.0, 1.0, torch.inf]), "found inf for prompt 'ccc' (1 of 3 rows)"),
        ({}, "found the keys []; accepted: a dict with the key 'reward'"),
        ({"a": torch.ones(3), "b": torch.ones(3)}, "found the keys ['mine/a', 'mine/b']"),
        ({"reward": torch.ones(3), "b": torch.ones(2)}, "reward 'mine/b': found a float32 tensor of shape (2,)"),
    ],
)
def test_what_is_no_score_is_named(result, expected):
    if isinstance(result, dict) and set(result) == {"a", "b"}:
        expected = "found the keys ['a', 'b']"
    assert expected in page(result)


def test_a_reward_that_exits_does_not_end_the_run_with_its_code():
    with pytest.raises(RewardError, match="SystemExit: 0"):
        run({"mine": (1.0, lambda _media, _prompts, _metadata: sys.exit(0))})


def test_an_exception_keeps_its_cause_and_names_the_reward():
    def broken(_media, _prompts, _metadata):
        raise KeyError("tag")

    with pytest.raises(RewardError) as caught:
        run({"fine": (1.0, length), "broken": (1.0, broken)})
    text = str(caught.value)
    assert "reward 'broken' failed on a batch of 3 that starts with prompt 'a'" in text
    assert "test_mix.py:" in text
    assert "KeyError: 'tag'" in text
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_page_of_the_reward_itself_is_kept():
    def broken(_media, _prompts, _metadata):
        raise UserError("prompt 'bb' has no quotes")

    with pytest.raises(RewardError, match="reward 'ocr': prompt 'bb' has no quotes"):
        run({"ocr": (1.0, broken)})


def test_rows_that_do_not_fit_together_are_the_callers_fault():
    mix = Mix({"length": (1.0, length)})
    for media, prompts, metadata in [
        (MEDIA[:2], PROMPTS, [{}] * 3),
        (MEDIA, PROMPTS, [{}]),
        (MEDIA[:, 0], PROMPTS, [{}] * 3),
    ]:
        with pytest.raises(ValueError, match="do not fit together"):
            mix(media, prompts, metadata)
