"""[train.train_policy]: each case shows its key being honoured, or the value refused, or that it has no effect."""

import json
import time

import pytest
from PIL import Image

from sanarl.config import ConfigError
from sanarl.data.order import picks
from sanarl.errors import UserError

honours = pytest.mark.honours
TASK = "train.train_policy"
PAIR = f"{TASK}.batch_size_per_optimize=12"  # one optimiser step a rollout


@honours(f"{TASK}.type", f"{TASK}.trainer_type")
def test_task(lab):
    assert [lab.loaded(task).config.task for task in ("sft", "sft-lora", "nft")] == ["sft", "sft-lora", "nft"]
    with pytest.raises(ConfigError, match=rf'{TASK}\.type: found "dpo"; accepted "sft" or "grpo"'):
        lab.loaded("sft", f'{TASK}.type="dpo"')
    algorithms = '"diffusion_nft", "awm" or "flow_grpo"'
    with pytest.raises(ConfigError, match=rf'{TASK}\.trainer_type: found "ppo"; .* {algorithms}'):
        lab.loaded("nft", f'{TASK}.trainer_type="ppo"')
    assert lab.loaded("flowgrpo").config.task == "flowgrpo"
    assert "ratio_deviation" in lab.quick("flowgrpo").metrics[0]
    assert "old_deviate" in lab.quick("nft").metrics[0]
    with pytest.raises(ConfigError, match=rf'{TASK}\.trainer_type: found "diffusion_nft"; accepted "sft"'):
        lab.loaded("sft", f'{TASK}.trainer_type="diffusion_nft"')
    assert lab.loaded("sft", f'{TASK}.trainer_type="diffusers_sft"').config == lab.loaded("sft").config


# ---- steps


@honours(f"{TASK}.mini_batch")
def test_mini_batch(lab, seen):
    for task, sizes in (("sft-lora", {2: [2, 2, 2], 6: [6]}), ("nft", {4: [4, 4, 4], 7: [7, 5]})):
        for size, passes in sizes.items():
            seen.passes.clear()
            run = lab.fresh(task, *(lab.plain if task == "nft" else ()), f"{TASK}.mini_batch={size}")
            assert seen.sizes(trained=True) == passes
            plain = lab.quick(task, *(lab.plain if task == "nft" else ()))
            assert run.metrics[0]["loss"] == pytest.approx(plain.metrics[0]["loss"], rel=1e-4)


@honours(f"{TASK}.batch_size_per_optimize", f"{TASK}.mu_iterations")
@pytest.mark.parametrize(("update", "passes", "updates"), [(12, 1, 1), (6, 1, 2), (3, 1, 4), (6, 2, 4)])
def test_optimiser_steps_of_a_rollout(lab, update, passes, updates):
    run = lab.quick("nft", f"{TASK}.batch_size_per_optimize={update}", f"{TASK}.mu_iterations={passes}")
    assert run.state(1)["/progress/updates"] == updates


@honours(f"{TASK}.epsilon_low", f"{TASK}.epsilon_high")
def test_clip_range(lab):
    # Of two optimiser steps the first has ratios of 1, so at most half of all can be held by the clip.
    wide, low, high = (
        f"{TASK}.epsilon_{side}={value}" for side, value in (("low", 0.9), ("low", 1e-9), ("high", 1e-9))
    )
    loose = f"{TASK}.epsilon_high=0.9"
    held = {
        limits: lab.quick("flowgrpo", *limits).metrics[0]["clip_fraction"]
        for limits in ((wide, loose), (low, loose), (wide, high), (low, high))
    }
    assert held[wide, loose] == 0
    assert min(held[low, loose], held[wide, high]) > 0
    assert held[low, high] == pytest.approx(held[low, loose] + held[wide, high], abs=0.1)
    assert lab.idle("nft", low, loose) == [f"{TASK}.epsilon_low", f"{TASK}.epsilon_high"]


@honours(f"{TASK}.ratio_norm", f"{TASK}.step_reweighting")
def test_guarded_ratios_and_weights(lab):
    quiet = "policy.diffusers.sample.noise_level=0.3"  # deviations of 0.3 and 0.4, which ratio_norm multiplies by
    plain = lab.quick("flowgrpo", quiet).metrics[0]
    normed = lab.quick("flowgrpo", quiet, f"{TASK}.ratio_norm=true").metrics[0]
    assert normed["reward/mean"] == plain["reward/mean"]
    assert normed["ratio_deviation"] < plain["ratio_deviation"] * 0.6
    # By hand: the schedule of 3 steps with shift 3 is 1, 0.857, 0.6, 0; the first loss is divided by 0.143.
    heavy, light = (
        lab.quick(
            "flowgrpo",
            *lab.plain,
            f"{TASK}.step_reweighting={asked}",
            "policy.diffusers.sample.sde_window_range=[0, 1]",
        )
        for asked in ("true", "false")
    )
    assert heavy.metrics[0]["grad_norm"] == pytest.approx(light.metrics[0]["grad_norm"] * 7, rel=1e-3)
    found = lab.idle("nft", f"{TASK}.ratio_norm=true", f"{TASK}.step_reweighting=true")
    assert found == [f"{TASK}.ratio_norm", f"{TASK}.step_reweighting"]


@honours(f"{TASK}.kl_beta")
def test_distance_to_the_reference(lab):
    assert "kl_div_loss" not in lab.quick("nft", f"{TASK}.kl_beta=0.0").metrics[0]
    for beta in (0.5, 2.0):
        line = lab.quick("nft", f"{TASK}.kl_beta={beta}").metrics[0]
        assert line["kl_div_loss"] > 1e-6
        assert line["loss"] - line["policy_loss"] == pytest.approx(beta * line["kl_div_loss"], rel=1e-3)


@honours(f"{TASK}.old_kl_beta")
def test_distance_to_the_old_policy(lab):
    # At the first optimiser step old is the learner and nothing counts; at the second the loss has what it is told.
    for beta in (0.5, 2.0):
        keys = ("train.optm_warmup_steps=0", f"{TASK}.batch_size_per_optimize=6", f"{TASK}.old_kl_beta={beta}")
        line = lab.quick("awm", *lab.plain, *keys).metrics[0]
        assert line["old_deviate"] > 1e-6
        assert line["loss"] - line["policy_loss"] == pytest.approx(beta * line["old_deviate"], rel=1e-3)
    assert lab.idle("nft", f"{TASK}.old_kl_beta=1.0") == [f"{TASK}.old_kl_beta"]


@honours(f"{TASK}.matching_power")
def test_power_of_the_matching_error(lab):
    # By hand: at the old policy a sample's gradient is that of its error times the error's power less one.
    root, plain = (lab.quick("awm", *lab.plain, f"{TASK}.matching_power={power}").metrics[0] for power in (0.25, 1.0))
    assert root["matching_error"] == pytest.approx(plain["matching_error"], rel=0.1)
    expected = plain["matching_error"] ** -0.75
    assert root["grad_norm"] / plain["grad_norm"] == pytest.approx(expected, rel=0.3)
    assert abs(expected - 1) > 0.3
    assert lab.idle("nft", f"{TASK}.matching_power=1.0") == [f"{TASK}.matching_power"]


@honours(f"{TASK}.advantage_low", f"{TASK}.advantage_high")
def test_clip_of_advantages(lab):
    # The clip is a factor of the loss; at the old policy nothing else depends on it.
    wide, narrow = (
        lab.quick("nft", *lab.plain, f"{TASK}.advantage_low=-{clip}", f"{TASK}.advantage_high={clip}").metrics[0]
        for clip in (5.0, 2.0)
    )
    assert narrow["policy_loss"] == pytest.approx(wide["policy_loss"] * 2 / 5, rel=1e-6)
    for key in ("advantage_low=-2.0", "advantage_high=2.0"):
        with pytest.raises(ConfigError, match=r"the loss has a single clip for both signs"):
            lab.loaded("nft", f"{TASK}.{key}")


@honours(f"{TASK}.advantage_mode")
def test_which_advantages_count(lab):
    modes = ("all", "positive_only", "negative_only", "one_only", "binary")
    runs = [lab.quick("nft", *lab.plain, f'{TASK}.advantage_mode="{mode}"') for mode in modes]
    assert len({run.metrics[0]["reward/mean"] for run in runs}) == 1
    assert len({run.metrics[0]["grad_norm"] for run in runs}) == len(modes)


# ---- rewards


@honours(f"{TASK}.reward_function")
def test_rewards(lab):
    both = f'{TASK}.reward_function={{ "{lab.probe("width")}" = 2.0, "{lab.probe("length")}" = 0.5 }}'
    line = lab.quick("nft", both).metrics[0]
    assert line["reward/width"] == 32
    assert line["reward/mean"] == pytest.approx(2 * 32 + 0.5 * line["reward/length"])


@honours(f"{TASK}.reward_args")
def test_arguments_of_rewards(lab):
    given = f'{TASK}.reward_args={{ "{lab.probe("Scaled")}" = {{ factor = 3 }} }}'
    assert lab.quick("nft", lab.rewarded("Scaled"), given).metrics[0]["reward/mean"] == 3 * 32


# ---- order and reading


def taken(lab, tmp_path, *overrides, task="sft-lora"):
    """What was read: (index, thread) of a step, in order."""
    log = tmp_path / f"{len(list(tmp_path.iterdir()))}.txt"
    lab.fresh(task, f'custom={{ log = "{log}" }}', *(f"{TASK}.{key}" for key in overrides), module=lab.items)
    return [line.split() for line in log.read_text().splitlines()]


@honours(f"{TASK}.dataloader_shuffle", f"{TASK}.dataloader_seed")
@pytest.mark.parametrize(("task", "items"), [("sft-lora", 6), ("nft", 3)])
def test_order(lab, tmp_path, task, items):
    # Reference: the order as a pure function; unshuffled, the first items.
    for keys, wanted in (
        (("dataloader_shuffle=false",), list(range(items))),
        (("dataloader_seed=3",), picks(12, 0, items, 3, True)),
        (("dataloader_seed=4",), picks(12, 0, items, 4, True)),
    ):
        read = [int(index) for index, _ in taken(lab, tmp_path, *keys, task=task)]
        assert read == [0] * (task == "nft") + wanted  # rewards are tried on the first item
    assert len({tuple(picks(12, 0, items, seed, True)) for seed in (3, 4)}) == 2


@honours(f"{TASK}.dataloader_num_workers")
@pytest.mark.parametrize(("workers", "name"), [(0, "MainThread"), (2, "data_0")])
def test_readers(lab, tmp_path, workers, name):
    found = taken(lab, tmp_path, f"dataloader_num_workers={workers}", "dataloader_shuffle=false")
    assert name in {thread for _, thread in found}
    assert ("MainThread" in {thread for _, thread in found}) == (workers == 0)


@honours(f"{TASK}.dataloader_prefetch_factor")
@pytest.mark.parametrize(("ahead", "items"), [("", 12), ("1", 12), ("3", 24)])
def test_reading_ahead(lab, tmp_path, ahead, items):
    # By hand: the step's 6 items and those of the steps after it.
    log = tmp_path / "taken.txt"
    keys = [f'custom={{ log = "{log}", count = 60 }}', f"{TASK}.dataloader_num_workers=1"]
    keys += [f"{TASK}.dataloader_prefetch_factor={ahead}"] if ahead else []
    with lab.parts("sft-lora", *keys, module=lab.items) as made, made.loader() as loader:
        loader.take(0, range(6))
        count, before = len(log.read_text().splitlines()), -1
        while count != before:  # until it has stopped growing
            time.sleep(0.1)
            count, before = len(log.read_text().splitlines()), count
    assert count == items


# ---- data sets


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    """Prompt sets whose prompts' lengths tell which file they are from."""
    root = tmp_path_factory.mktemp("prompts")
    for name, length in (("a/train", 3), ("a/extra", 5), ("b/train", 7), ("train", 9)):
        file = root / f"{name}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(letter * length for letter in "xyz") + "\n")
    return root


@honours(f"{TASK}.dataset.name", f"{TASK}.dataset.local_dir", f"{TASK}.dataset.split")
@pytest.mark.parametrize(
    ("name", "split", "length"),
    [("a", '""', 3), ("a", '"extra"', 5), ("b", '""', 7), ("", '""', 9), ("a", '["train", "extra"]', None)],
)
def test_prompts(lab, prompts, name, split, length):
    keys = [f'{TASK}.dataset.local_dir="{prompts}"', f'{TASK}.dataset.name="{name}"', f"{TASK}.dataset.split={split}"]
    if length is None:
        with lab.parts("nft", *keys) as made:
            assert [len(item["prompt"]) for item in made.dataset] == [3] * 3 + [5] * 3
    else:
        assert lab.quick("nft", *keys, lab.rewarded("length")).metrics[0]["reward/mean"] == length


@honours(f"{TASK}.dataset.name", f"{TASK}.dataset.local_dir", f"{TASK}.dataset.split")
def test_pictures(lab, seen, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    Image.new("RGB", (40, 40), (255, 0, 0)).save(folder / "one.png")
    (folder / "one.json").write_text(json.dumps({"prompt": "a red wall"}))
    for keys in (
        [f'{TASK}.dataset.local_dir="{folder}"', f'{TASK}.dataset.name=""'],
        [f'{TASK}.dataset.name="{folder}"'],
    ):
        seen.prompts.clear()
        lab.fresh("sft-lora", *keys)
        assert {prompt for prompt, _ in seen.prompts if prompt} == {"a red wall"}
        with pytest.raises(UserError, match=rf"{TASK}\.dataset\.split: found 'test', but a folder of pictures has no"):
            lab.parts("sft-lora", *keys, f'{TASK}.dataset.split="test"')


@honours("data.buckets")
def test_pictures_of_several_sizes(lab, seen, tmp_path):
    # A mini-batch holds one size. Reference: the same step in mini-batches of one sample; tolerance: rounding.
    for name, size in (("broad", (80, 40)), ("high", (40, 80))):
        Image.new("RGB", size, (255, 0, 0)).save(tmp_path / f"{name}.png")
        (tmp_path / f"{name}.json").write_text(json.dumps({"prompt": f"a {name} wall"}))
    keys = [f'{TASK}.dataset.local_dir="{tmp_path}"', f'{TASK}.dataset.name=""', "data.buckets=[[32, 64], [64, 32]]"]
    together = lab.fresh("sft-lora", *keys, f"{TASK}.mini_batch=6").metrics[0]
    assert seen.sizes(trained=True) == [3, 3]
    alone = lab.fresh("sft-lora", *keys, f"{TASK}.mini_batch=1").metrics[0]
    assert (together["loss"], together["grad_norm"]) == pytest.approx((alone["loss"], alone["grad_norm"]), rel=1e-4)


@honours(f"{TASK}.dataset.name", f"{TASK}.dataset.local_dir", f"{TASK}.dataset.split")
def test_shapes_are_nothing_else(lab):
    for key, value in (("local_dir", "somewhere"), ("split", "test")):
        with pytest.raises(UserError, match=rf"{TASK}\.dataset\.{key}: found '{value}'"):
            lab.parts("sft", f'{TASK}.dataset.{key}="{value}"')
    with pytest.raises(UserError, match=rf"{TASK}\.dataset\.name: found 'others'"):
        lab.parts("sft", f'{TASK}.dataset.name="others"', module="sanarl.datasets.shapes")
