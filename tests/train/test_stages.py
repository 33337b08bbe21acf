"""Pools, previews and what is kept of them. References: runs without the stage in question, and selection by hand."""

import json
import math

import pytest
import torch

from sanarl.errors import UserError
from sanarl.maths.select import select
from sanarl.rollout.collect import collect
from sanarl.rollout.generate import Sampler
from sanarl.training.stages import Asked, agreement

SHORT = ("validation.enable=false", "train.max_num_steps=2", "train.ckpt.export_safetensors=false")
POOL = ("rollout.n_candidates=6", "rollout.n_generation_mini_batch=6")
FULL_PREVIEW = ("rollout.preview.num_steps=3", "rollout.preview.n_regenerate=6")


def equal(found, expected):
    """Whether two runs trained alike, bit by bit, and say so of all that both say, times aside."""
    for mine, theirs in zip(found.metrics, expected.metrics, strict=True):
        shared = [name for name in mine.keys() & theirs.keys() if not name.startswith(("time/", "perf/"))]
        assert {name: mine[name] for name in shared} == {name: theirs[name] for name in shared}
    ours, wanted = found.state(2), expected.state(2)
    names = [name for name in wanted if "/policy/" in f"/{name}"]
    assert len(names) > 10
    return all(torch.equal(torch.as_tensor(ours[name]), torch.as_tensor(wanted[name])) for name in names)


def test_a_preview_like_the_full_rollout_is_the_full_rollout(train):
    """Every candidate is regenerated: the same noise, steps and engine give the same picture, bit by bit."""
    plain = train("nft", *SHORT, *POOL, into="plain")
    previewed = train("nft", *SHORT, *POOL, *FULL_PREVIEW, into="previewed")
    assert equal(previewed, plain)
    for mine, theirs in zip(previewed.metrics, plain.metrics, strict=True):
        assert mine["preview/reward_mean"] == theirs["pool/reward_mean"] == mine["pool/reward_mean"]
        assert mine["preview/spearman"] == pytest.approx(1.0)
        assert mine["preview/kendall"] == pytest.approx(1.0)
        assert mine["preview/top_overlap"] == 1.0
        assert "preview/spearman" not in theirs
    for line in map(json.loads, (previewed.folder / "metrics.jsonl").read_text().splitlines()):
        assert line["time/rollout"] >= line["time/preview"] + line["time/regenerate"] > 0


def test_the_chosen_start_from_their_own_noise(make_policy):
    """A regenerated sample is its preview, whatever it is drawn beside."""
    policy = make_policy(size=(32, 32))
    asked = Asked([{"prompt": p, "metadata": {}} for p in ("a red circle", "two blue squares")], size=5)
    sampler = Sampler(3, 1.0, "euler", 1.0, 5)
    ids = torch.arange(10)
    first = collect(policy, asked.request(ids), sampler, (7, 1), None, 60.0, range(10))
    chosen = torch.tensor([1, 4, 5, 9])
    again = collect(policy, asked.request(ids[chosen]), sampler, (7, 1), None, 60.0, range(4))
    torch.testing.assert_close(again.rollout.latents, first.rollout.latents[chosen], rtol=0, atol=1e-6)
    assert again.rollout.prompts == [first.rollout.prompts[i] for i in chosen]


def test_what_trains_is_chosen_by_hand(train):
    """Best two and worst two of six candidates a prompt, by the rewards of the pool; trained by group advantages."""
    run = train("nft", *SHORT, *POOL, "train.train_policy.batch_size_per_optimize=12")
    line = run.metrics[0]
    assert line["group_size"] == 4
    assert line["pool/size"] == 6
    assert line["trained_prompt_num"] == 3
    assert line["reward/max"] == pytest.approx(line["pool/reward_max"])
    assert line["reward/min"] == pytest.approx(line["pool/reward_min"])
    assert line["reward_std_mean"] > train("nft", *SHORT, into="small").metrics[0]["reward_std_mean"]


def test_no_stage_leaves_everything_as_it_was(train):
    """As many candidates as train, said or unsaid."""
    assert equal(train("nft", *SHORT, "rollout.n_candidates=4", into="said"), train("nft", *SHORT, into="unsaid"))


def test_half_size_previews(train):
    """Half the side is decoded; the rewards that train come from full pictures."""
    half = train("nft", *SHORT, *POOL, *FULL_PREVIEW, "rollout.preview.decode_scale=0.5", into="half").metrics
    full = train("nft", *SHORT, *POOL, *FULL_PREVIEW, into="full").metrics
    assert half[0]["preview/reward_mean"] != full[0]["preview/reward_mean"]
    assert half[0]["pool/reward_mean"] == full[0]["pool/reward_mean"]


def test_rewards_are_tried_on_previews_too(train, tmp_path):
    """Before the first step, not in it: the reward of the shapes world asks for 48 pixels a side."""
    shapes = "policy.diffusers.inference_size=[64, 64]", "train.train_policy.reward_function={shapes = 1.0}"
    with pytest.raises(
        UserError, match=r"at least 48 pixels a side, got 32\n  previews have 32 x 32 pixels; rollout\."
    ):
        train("nft", *SHORT, *POOL, *FULL_PREVIEW, *shapes, "rollout.preview.decode_scale=0.5", into="small")
    (run,) = (tmp_path / "small").iterdir()
    assert "stopped after" not in (run / "log.txt").read_text()


@pytest.mark.parametrize("mode", ["emulated_nvfp4", "emulated_fp8"])
def test_emulated_engines_say_what_they_are(train, mode):
    """A preview in fewer bits: its report, its check, and rewards near those of the full samples."""
    keys = "rollout.preview.num_steps=3", f'rollout.preview.mode="{mode}"', "rollout.engine.min_dim=16"
    run = train("nft", *SHORT, *POOL, *keys)
    log, report = (run.folder / "log.txt").read_text(), (run.folder / "engine.txt").read_text()
    name = {"emulated_nvfp4": "emulated NVFP4", "emulated_fp8": "emulated FP8"}[mode]
    assert f"rollout engine {mode}: {name}" in log
    assert "in 6 linear layers, 14 skipped" in log
    assert f"blocks.1.mlp.point_conv.linear: {name}" in report
    assert "blocks.0.attn.qkv: its name contains attn.qkv" in report
    assert run.metrics[0]["preview/spearman"] > 0
    assert run.metrics[1]["rollout/recompiled"] == 0


def test_a_mode_in_fewer_bits_that_changes_no_layer_is_refused(train):
    """The tiny model is narrower than min_dim's default: its "NVFP4" would be float32 under another name."""
    keys = "rollout.preview.num_steps=3", 'rollout.preview.mode="emulated_nvfp4"'
    with pytest.raises(UserError, match=r'leave no layer .* in fewer bits, so that mode "emulated_nvfp4" would'):
        train("nft", *SHORT, *POOL, *keys)


def test_agreement_leaves_out_what_is_undefined():
    flat, groups = torch.ones(4), torch.zeros(4, dtype=torch.int64)
    found = agreement(torch.arange(4.0), flat, groups, 2)
    assert found.keys() == {"preview/top_overlap"}
    assert not any(math.isnan(value) for value in found.values())


def test_equal_prompts_are_one_group_in_every_stage():
    asked = Asked([{"prompt": p, "metadata": {}} for p in ("a", "b", "a")], size=4)
    groups = asked.groups(torch.arange(12))
    rows = select(torch.arange(12.0), groups, 2, 4, "best_worst")
    assert rows.tolist() == [0, 1, 4, 7, 10, 11]  # of "a" the two worst and two best of all eight
    assert asked.request(rows).prompts == ["a", "a", "b", "b", "a", "a"]
