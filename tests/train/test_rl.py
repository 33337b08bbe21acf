from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from sanarl.algorithms import nft
from sanarl.config import load
from sanarl.data.loading import Loader
from sanarl.data.module import load as load_module
from sanarl.models.load import load_model
from sanarl.rollout.collect import collect
from sanarl.rollout.generate import Sampler
from sanarl.runtime.step import StepGuard, optimise
from sanarl.runtime.world import World
from sanarl.training import modelling, rl, settings
from sanarl.training.stages import Pool, Samples
from sanarl.types import Cond, Rollout

SETUP = rl.Setup(
    prompts_per_step=3,
    pool=Pool(candidates=4, train=4),
    updates_per_pass=2,
    mu_iterations=1,
    global_std=False,
    sampler=Sampler(2, 1.0, "euler", 1.0, 4),
    settings=nft.Settings(
        mini_batch=2,
        nft_beta=1.0,
        kl_beta=0.0,
        advantage_clip=5.0,
        advantage_mode="all",
        timesteps_fraction=1.0,
        decay_type=0,
    ),
    seed=0,
    deadline_s=60.0,
    show_every=None,
)
PROMPTS = ["a", "b", "c", "a", "d"]


@pytest.fixture
def loader():
    items = [{"prompt": p, "metadata": {"number": i}} for i, p in enumerate(PROMPTS)]
    return Loader(items, seed=0, shuffle=False, workers=0, prefetch=None, stride=3)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_ranks_ask_for_all_rows_of_a_step_once(loader, size):
    # Reference: by hand. Step 2 takes items 3, 4 and 0 again: "a", "d", "a"; both "a" are one group.
    asked = rl.ask(loader, 2, SETUP)
    ids = torch.arange(len(asked))
    assert asked.groups(ids).tolist() == [0] * 4 + [1] * 4 + [0] * 4
    assert asked.prompts == ["a", "d", "a"]
    requests = [asked.request(ids[list(World(rank, size).rows(12))]) for rank in range(size)]
    assert [p for r in requests for p in r.prompts] == ["a"] * 4 + ["d"] * 4 + ["a"] * 4
    assert [m["number"] for r in requests for m in r.metadata] == [3] * 4 + [4] * 4 + [0] * 4
    assert [i for r in requests for i in r.ids.tolist()] == list(range(12))
    assert [g for r in requests for g in r.groups.tolist()] == asked.groups(ids).tolist()


def even(groups):
    """Whether the optimiser steps of a rollout take every row once, and the same share of every group."""
    slices = list(rl.slices(groups, 1, SETUP))
    counts = [torch.bincount(groups[rows], minlength=int(groups.max()) + 1) for rows in slices]
    once = sorted(torch.cat(slices).tolist()) == list(range(len(groups)))
    return once and len(slices) == 2 and torch.equal(counts[0], counts[1])


@pytest.mark.parametrize("groups", [[0, 1, 0] * 4, [0] * 4 + [1] * 4 + [0] * 4, [5] * 12])
def test_every_optimiser_step_takes_the_same_share_of_every_group(groups):
    assert even(torch.tensor(groups))
    assert all(rows.tolist() == sorted(rows.tolist()) for rows in rl.slices(torch.tensor(groups), 1, SETUP))


def test_defect_wrong_group_slicing_is_caught(monkeypatch):
    # Rows [i : i + n] instead of [i * n : (i + 1) * n] overlap and leave groups out.
    monkeypatch.setattr(rl, "slices", lambda *_: [torch.arange(i, i + 6) for i in range(2)])
    assert not even(torch.arange(12) // 4)
    # Without overlap, but by place instead of by group: each step sees groups of its own.
    monkeypatch.setattr(rl, "slices", lambda *_: torch.arange(12).split(6))
    assert not even(torch.arange(12) // 4)


def test_iterations_pass_over_the_rollout_again_in_another_order():
    groups = torch.arange(12) // 4
    found = list(rl.slices(groups, 1, replace(SETUP, mu_iterations=2)))
    assert len(found) == 4
    for half in (found[:2], found[2:]):
        assert sorted(torch.cat(half).tolist()) == list(range(12))
    assert found[0].tolist() != found[2].tolist()
    assert torch.equal(found[0], next(rl.slices(groups, 1, SETUP)))
    assert found[0].tolist() != next(rl.slices(groups, 2, SETUP)).tolist()


def rollout(request):
    n = len(request.ids)
    return Rollout(
        ids=request.ids,
        groups=request.groups,
        prompts=request.prompts,
        cond=Cond(torch.zeros(n, 1, 1), torch.ones(n, 1)),
        latents=torch.zeros(n, 1, 1, 1),
        sigmas=torch.ones(n, 2),
    )


@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_the_shares_of_all_ranks_add_up(size, loader):
    # Reference: 1. Some ranks have no rows of a slice, or of the step.
    job = SimpleNamespace(policy=None)
    for rows in rl.slices(torch.arange(12) // 4, 1, SETUP):
        total = 0.0
        for rank in range(size):
            asked = rl.ask(loader, 1, SETUP)
            ids = torch.arange(12)
            request = asked.request(ids[list(World(rank, size).rows(12))])
            found = SimpleNamespace(rollout=rollout(request) if len(request.ids) else None)
            batch = Samples(found, request, ids, asked.groups(ids), {})
            terms, share = rl.slice_terms(job, batch, rows, torch.zeros(12), (0,), SETUP)
            assert (terms == ()) is (share == 0.0)
            assert share == pytest.approx(len(set(request.ids.tolist()) & set(rows.tolist())) / len(rows))
            total += share
        assert total == pytest.approx(1.0)


def test_metrics_of_several_optimiser_steps():
    # Reference: means by hand over the steps that report; skipped_steps counts from the start of the run.
    skipped = [{"skipped_steps": n} for n in (0.0, 1.0, 1.0)]
    found = rl.mean_of([{"loss": 1.0, **skipped[0]}, skipped[1], {"loss": 2.0, **skipped[2]}])
    assert found == {"loss": 1.5, "skipped_steps": 1.0}
    assert rl.mean_of([{"loss": 1.0, **skipped[0]}, skipped[1]]) == {"loss": 1.0, "skipped_steps": 1.0}


def test_reward_metrics():
    # Reference: by hand, two groups {1, 3} and {2, 2}.
    scores = {"reward": torch.tensor([1.0, 3.0, 2.0, 2.0]), "shapes": torch.tensor([0.0, 1.0, 1.0, 1.0])}
    found = rl.reward_metrics(scores, torch.tensor([0, 0, 2, 2]))
    assert found == {
        "reward/shapes": 0.75,
        "reward/mean": 2.0,
        "reward/max": 2.5,
        "reward/min": 1.5,
        "reward/range": 1.0,
        "reward_std_mean": 0.5,
        "zero_std_ratio": 0.5,
        "group_size": 2.0,
        "trained_prompt_num": 2.0,
    }


def test_a_step_taken_apart(train, tmp_path):
    # Reference: the third step of a run made again from its second checkpoint, part by part: samples of the old values,
    # advantages by a plain loop over groups, terms under the learner's. Old is half-way behind the learner.
    overrides = [
        "policy.diffusers.weight_copy_decay_type=3",
        "policy.diffusers.weight_copy_decay_value=0.5",
        "policy.diffusers.weight_copy_decay_steps=1",
        "train.train_policy.batch_size_per_optimize=12",
        "train.ckpt.save_freq=1",
        "train.max_num_steps=3",
    ]
    run = train("nft", *overrides)
    line = run.metrics[3]
    config = load(tmp_path / "run.toml", overrides).config
    model = load_model(modelling.model_settings(config), torch.device("cpu"))
    policy = modelling.build_policy(config, model)
    checkpoint = run.folder / "checkpoints" / "step_2" / "state.pt"
    policy.load_state_dict(torch.load(checkpoint, weights_only=True)["policy"])
    setup = settings.rl_setup(config, model.flow_shift)
    loader = Loader(load_module("sanarl.datasets.shapes").train(config), 0, True, 0, None, config.prompts_per_step)
    asked = rl.ask(loader, 3, setup)
    request = asked.request(torch.arange(len(asked)))
    groups = request.groups

    def rewards_under(manager):
        with manager():
            found = collect(policy, request, setup.sampler, (0, 3), None, 60.0, range(12))
        return found, (found.shown[:, 0, 0] - found.shown[:, 0, 1]).mean((1, 2))

    found, rewards = rewards_under(policy.old)
    assert line["reward/mean"] == pytest.approx(rewards.mean().item(), rel=1e-6)
    for other in (policy.reference, nullcontext):
        assert line["reward/mean"] != pytest.approx(rewards_under(other)[1].mean().item(), rel=1e-6)
    advantages = torch.zeros(12)
    for row, group in enumerate(groups.tolist()):
        members = rewards[groups == group]
        advantages[row] = (rewards[row] - members.mean()) / (members.std(correction=0) + 1e-4)
    metrics = optimise(
        nft.terms(policy, replace(found.rollout, advantages=advantages), setup.settings, (0, 3, 0)),
        policy,
        torch.optim.SGD(policy.masters, lr=0.0),
        grad_clip=0.0,
        share=1.0,
        world=World(),
        guard=StepGuard(1),
        step=3,
    )
    assert {name: line[name] for name in metrics} == pytest.approx(metrics, rel=1e-4)
    assert line["old_deviate"] > 0


def test_a_step_without_signal_is_said(train, tmp_path):
    reward = tmp_path / "flat.py"
    reward.write_text("def flat(media, prompts, metadata):\n    return media.new_zeros(len(prompts))\n")
    names = f'train.train_policy.reward_function={{ "{reward}:flat" = 1.0 }}'
    run = train("nft", names, "train.max_num_steps=1")
    log = (run.folder / "log.txt").read_text()
    assert run.metrics[-1]["zero_std_ratio"] == 1
    assert "step 1: the rewards of every group are all equal; such a step teaches nothing" in log
