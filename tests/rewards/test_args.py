"""Arguments of rewards, from the TOML to the class."""

import sys

import pytest
import torch

from sanarl.config import ConfigError, load
from sanarl.rewards.local import Scoring
from sanarl.training.rewarding import evaluation_rewards, scoring, training_rewards

MINE = """
class Scaled:
    def __init__(self, factor=1.0): self.factor = factor
    def __call__(self, media, prompts, metadata): return self.factor * media.flatten(1).mean(1)
"""
KEY = "train.train_policy.reward_args"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return ("train.train_policy.reward_function={'mine.py:Scaled'=1.0}", f"{KEY}={{'mine.py:Scaled'={{factor=3}}}}")


def total(which):
    with scoring(which, rests=False) as made:
        assert isinstance(made, Scoring)
        return made.mix(torch.ones(1, 1, 3, 2, 2), ["a"], [{}]).total.item()


def test_arguments_reach_the_rewards_of_training_and_evaluation(mine):
    config = load("tiny-image-nft", (*mine, "validation.reward_function={}")).config
    assert config.grpo.reward_args == {"mine.py:Scaled": {"factor": 3}}
    assert total(training_rewards(config)) == 3
    assert evaluation_rewards(config) == training_rewards(config)
    own = ("validation.reward_function={'mine.py:Scaled'=1.0}", "validation.reward_args={'mine.py:Scaled'={factor=5}}")
    config = load("tiny-image-nft", (*mine, *own)).config
    assert (total(training_rewards(config)), total(evaluation_rewards(config))) == (3, 5)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (f"{KEY}={{ocr={{threads=1}}}}", f"{KEY}.ocr: no such reward in reward_function; accepted shapes"),
        (f"{KEY}={{shapes={{endpoint_api_key='x'}}}}", "a key would be written into config.json"),
        (f"{KEY}={{shapes={{x=[1]}}}}", "accepted a table of reward names, each a table of arguments"),
        ("validation.reward_args={ocr={threads=1}}", "validation.reward_args.ocr: no such reward in reward_function"),
    ],
)
def test_arguments_that_are_refused(given, expected):
    with pytest.raises(ConfigError) as caught:
        load("tiny-image-nft", (given,))
    assert expected in str(caught.value)
