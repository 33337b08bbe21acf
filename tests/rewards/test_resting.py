"""Reward models that leave their device between rollouts. The meta device stands for a GPU: it holds no values."""

import torch
from torch import nn

from sanarl.rewards.local import Scoring
from sanarl.rewards.mix import Mix
from sanarl.rewards.resting import Resting, num_bytes
from sanarl.rewards.scorers.clip import Clip, PickScore


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)
        self.register_buffer("places", torch.arange(3.0))


def scorer(device=None):
    """A reward of this package around a small model, without files."""
    reward, clip = object.__new__(PickScore), object.__new__(Clip)
    clip.model, clip.device, clip.dtype = Inner(), device, torch.float32
    reward.clip, reward.batch_size = clip, 16
    return reward


class Foreign:
    """Somebody's reward, whose model nobody else moves."""

    def __init__(self):
        self.model = Inner()

    def __call__(self, media, _prompts, _metadata):
        return torch.zeros(len(media))


def test_models_come_home_with_their_values():
    reward = scorer()
    model = reward.clip.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    resting = Resting([reward, Foreign()])
    assert resting.modules == [model]
    for _ in range(2):
        model.to("meta")
        assert {t.device.type for t in model.state_dict().values()} == {"meta"}
        resting.rest()
        after = model.state_dict()
        assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_what_has_a_device_of_its_own_stays_there():
    assert Resting([scorer(torch.device("meta"))]).modules == []
    assert num_bytes([scorer(torch.device("meta")), Foreign(), lambda *_: None]) == 0
    assert num_bytes([scorer()]) == 4 * (16 + 3)


class Scored(PickScore):
    """Moves its model as PickScore does, and scores without it."""

    def __init__(self):
        self.clip = scorer().clip

    def __call__(self, media, _prompts, _metadata):
        self.clip.model.to("meta")
        return torch.zeros(len(media))


def test_scoring_lets_models_rest_when_all_scores_are_there():
    media = torch.zeros(2, 1, 3, 4, 4)
    for rests, place in ((True, "cpu"), (False, "meta")):
        reward = Scored()
        scoring = Scoring(Mix({"scored": (1.0, reward)}), rests=rests)
        scoring.submit([0, 1], media, ["a", "b"], [{}, {}])
        scoring.collect(10)
        scoring.close()
        assert {p.device.type for p in reward.clip.model.parameters()} == {place}


def test_pictures_are_freed_once_they_are_scored():
    scoring = Scoring(Mix({"foreign": (1.0, Foreign())}))
    scoring.submit([0], torch.zeros(1, 1, 3, 4, 4), ["a"], [{}])
    (batch,) = scoring._batches
    batch.result.result(10)
    scoring.collect(10)
    assert batch.media.numel() == 0
    scoring.close()
