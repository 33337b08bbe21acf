"""What the guards see and say; reference: by hand, or the same policy under other values."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from sanarl.maths import pictures
from sanarl.rewards.local import Scoring
from sanarl.rewards.mix import Mix
from sanarl.rollout.evaluate import HeldOut
from sanarl.rollout.generate import Sampler
from sanarl.rollout.guards import Limits, Look, breaches, look
from sanarl.runtime.world import World

GROUPS = torch.arange(8) // 2
LIMITS = Limits(min_diversity=0.5, max_change=3.0, max_drift=0.5)
START = Look(
    scores={"reward": torch.linspace(0, 1, 8).double()},
    groups=GROUPS,
    diversity=0.2,
    statistics=torch.full((8, len(pictures.NAMES)), 0.3).double(),
    drift=0.0,
)


def changed(**named):
    return breaches(replace(START, **named), START, LIMITS)


def test_nothing_is_said_while_all_is_well():
    assert changed() == []
    rising = {"reward": START.scores["reward"] + 1}
    assert changed(scores=rising, diversity=0.11, statistics=START.statistics * 2.9, drift=0.49) == []
    assert changed(statistics=START.statistics / 2.9) == []


def test_what_is_said_has_the_numbers():
    # Rewards of 4 prompts fall by 0.5, 0.6, 0.7, 0.6: mean 0.6, t(3) 3.182 * 0.0816 / 2 = 0.1299 on either side.
    fall = torch.tensor([0.5, 0.5, 0.6, 0.6, 0.7, 0.7, 0.6, 0.6])
    assert changed(scores={"reward": START.scores["reward"] - fall}) == [
        "reward on the fixed prompts fell by 0.6 (95 % interval over 4 prompts: 0.4701 to 0.7299)"
    ]
    one = {"reward": START.scores["reward"] - fall, "red": START.scores["reward"] - fall}
    before = replace(START, scores={name: START.scores["reward"] for name in one})
    assert [line[:10] for line in breaches(replace(START, scores=one), before, LIMITS)] == ["reward red"]
    assert changed(diversity=0.05) == [
        "samples of a prompt differ by 0.05, 25% of the 0.2 at the start (guards.min_diversity = 0.5)"
    ]
    assert changed(drift=0.75) == ["velocities are 0.75 of their size away from the start (guards.max_drift = 0.5)"]


@pytest.mark.parametrize("name", pictures.NAMES)
@pytest.mark.parametrize("factor", [3.5, 0.25])
def test_every_statistic_is_watched(name, factor):
    statistics = START.statistics.clone()
    statistics[:, pictures.NAMES.index(name)] *= factor
    assert changed(statistics=statistics) == [
        f"{name.replace('_', ' ')} is {0.3 * factor:.4g}, {factor:.2g} times the 0.3 at the start "
        "(guards.max_change = 3)"
    ]


def test_a_fall_within_the_error_is_not_said():
    fall = torch.tensor([0.5, 0.5, -0.4, -0.4, 0.7, 0.7, -0.1, -0.1])
    assert changed(scores={"reward": START.scores["reward"] - fall}) == []


def mean_of_red(media, _prompts, _metadata):
    return media[:, :, 0].mean((1, 2, 3))


@pytest.fixture
def held_out():
    sampler = Sampler(num_steps=2, guidance_scale=1.0, solver="euler", flow_shift=1.0, mini_batch=3)
    scoring = Scoring(Mix({"red": (1.0, mean_of_red)}))
    yield HeldOut(["a red circle", "two blue squares"], [{}, {}], 2, sampler, (0, "guards"), scoring, 60.0)
    scoring.close()


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 5])
def test_a_look_measures_its_samples_and_leaves_the_policy_alone(make_policy, held_out, count):
    policy = make_policy(size=(32, 32), frames=count)
    for master in policy.masters:
        master += 0.05 * torch.randn(master.shape, generator=torch.Generator().manual_seed(1))
    policy.publish()
    before = [weight.clone() for weight in policy._working]
    start = look(policy, policy.reference(), held_out, World())
    now = look(policy, policy.using(policy.masters), held_out, World())
    assert all(torch.equal(a, b) for a, b in zip(before, policy._working, strict=True))
    assert start.drift == 0
    assert now.drift > 1e-3
    assert not torch.equal(start.statistics, now.statistics)
    again = look(policy, policy.reference(), held_out, World())
    assert torch.equal(again.statistics, start.statistics)
    assert again.metrics == start.metrics
    names = pictures.NAMES if count > 1 else pictures.NAMES[:-1]
    assert set(start.metrics) == {f"guards/{n}" for n in ("reward", "red", "diversity", "drift", *names)}
    # Drift by hand: velocities at the learner's own samples, mixed with noise of their own.
    assert look(policy, nullcontext(), held_out, World()).drift == pytest.approx(now.drift)
