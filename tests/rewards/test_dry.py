"""The call of every reward before a run."""

import re

import pytest
import torch

from sanarl.rewards.dry import Trial, dry_call, trial_media
from sanarl.rewards.local import Scoring
from sanarl.rewards.mix import Mix, RewardError


def test_each_reward_is_told_with_shape_range_and_time():
    def bright(media, _prompts, metadata):
        return {"reward": media.flatten(1).mean(1) + metadata[0]["offset"], "first": media[:, 0, 0, 0, 0]}

    state = torch.get_rng_state()
    media = trial_media((4, 6), 3, torch.device("cpu"))
    assert media.shape == (2, 3, 3, 4, 6)
    with Scoring(Mix({"bright": (2.0, bright)})) as scoring:
        lines = dry_call(scoring, Trial(media, ["a", "a"], [{"offset": 1}] * 2, only_strict=True))
    assert re.fullmatch(r"reward bright: \(2,\), 1\.5 to 1\.5, \d\.\d\d s for media \(2, 3, 3, 4, 6\)", lines[0])
    assert lines[1:] == ["reward bright/first: (2,), 0 to 1"]
    assert torch.equal(state, torch.get_rng_state())


def test_what_cannot_work_is_found():
    mix = Mix(
        {"fine": (1.0, lambda m, _p, _d: m.flatten(1).mean(1)), "short": (1.0, lambda m, _p, _d: m[:1, 0, 0, 0, 0])}
    )
    media = trial_media((4, 4), 1, torch.device("cpu"))
    words = r"reward 'short': found a float32 tensor of shape \(1,\)"
    with Scoring(mix) as scoring, pytest.raises(RewardError, match=words):
        dry_call(scoring, Trial(media, ["a", "b"], [{}, {}], only_strict=True))
