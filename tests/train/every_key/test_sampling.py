"""[policy.diffusers.sample], [policy.parallelism] and [rollout]: each case shows its key being honoured or refused."""

import pytest

from sanarl.config import ConfigError

honours = pytest.mark.honours
SAMPLE, SIZES, TASK = "policy.diffusers.sample", "policy.parallelism", "train.train_policy"
EVALUATED = "validation.enable=true", "validation.val_before_train=false"


def reward(lab, *overrides):
    """Mean reward of a rollout."""
    return lab.quick("nft", *lab.plain, *overrides).metrics[0]["reward/mean"]


@honours(f"{SAMPLE}.num_steps")
@pytest.mark.parametrize("steps", [2, 4])
def test_steps_of_a_rollout_and_of_a_preview(lab, seen, steps):
    # By hand: 3 groups at once one after the other; 3 prompts x 2 samples in mini-batches of 3.
    lab.fresh("nft", *lab.plain, f"{SAMPLE}.num_steps={steps}")
    assert seen.sizes(trained=False) == [4] * 3 * steps
    seen.passes.clear()
    lab.fresh("sft-lora", *EVALUATED, f"{SAMPLE}.num_steps={steps}")
    assert seen.sizes(trained=False) == [3] * 2 * steps


@honours(f"{SAMPLE}.eval_num_steps")
@pytest.mark.parametrize("steps", [2, 4])
def test_steps_of_an_evaluation(lab, seen, steps):
    # By hand: after 3 groups x 3 steps of the rollout, 6 samples in mini-batches of 4.
    lab.fresh("nft", *lab.plain, *EVALUATED, f"{SAMPLE}.eval_num_steps={steps}")
    assert seen.sizes(trained=False)[9:] == [4] * steps + [2] * steps
    assert lab.idle("sft-lora", f"{SAMPLE}.eval_num_steps=2")[-1] == f"{SAMPLE}.eval_num_steps"


@honours(f"{SAMPLE}.guidance_scale")
def test_guidance(lab, seen):
    lab.fresh("nft", *lab.plain, f"{SAMPLE}.guidance_scale=2.0")
    assert seen.sizes(trained=False) == [4] * 3 * 3 * 2  # with and without the prompt
    assert len({reward(lab, f"{SAMPLE}.guidance_scale={scale}") for scale in (1.0, 2.0, 5.0)}) == 3


@honours(f"{SAMPLE}.solver")
def test_solver(lab):
    # Of 3 steps, all of dpm2's would be of first order.
    names, steps = ("euler", "flow", "ddim", "dpm1", "dpm2"), f"{SAMPLE}.num_steps=5"
    found = {name: reward(lab, steps, f'{SAMPLE}.solver="{name}"') for name in names}
    assert found["flow"] == found["euler"]
    assert found["ddim"] == pytest.approx(found["euler"], rel=1e-4)
    assert found["dpm1"] == pytest.approx(found["euler"], rel=1e-4)
    assert found["dpm2"] != pytest.approx(found["euler"], rel=1e-3)


@honours(f"{SAMPLE}.flow_shift")
def test_shift(lab):
    assert reward(lab, f"{SAMPLE}.flow_shift=3.0") == reward(lab)  # the model's own
    assert reward(lab, f"{SAMPLE}.flow_shift=1.0") != pytest.approx(reward(lab), rel=1e-3)


@honours(f"{SAMPLE}.global_std")
def test_deviation_of_the_rollout_or_of_groups(lab):
    groups, whole = (lab.quick("nft", f"{SAMPLE}.global_std={value}") for value in ("false", "true"))
    assert whole.metrics[0]["reward/mean"] == groups.metrics[0]["reward/mean"]
    assert not lab.equal(whole, groups)


@honours(f"{SAMPLE}.deterministic_sampling", f"{SAMPLE}.noise_level")
def test_stochastic_sampling_is_refused(lab):
    with pytest.raises(ConfigError, match=r"deterministic_sampling: found false; accepted true"):
        lab.loaded("nft", f"{SAMPLE}.deterministic_sampling=false")
    assert lab.idle("nft", f"{SAMPLE}.noise_level=0.5") == [f"{SAMPLE}.noise_level"]


# ---- sizes: what is written for several GPUs gives the same numbers on one


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=honours(f"{SIZES}.{name}"))
        for name in ("dp_shard_size", "dp_replicate_size", "n_init_replicas")
    ],
)
def test_parallelism(lab, name):
    for task, share in (("sft-lora", 3), ("nft", 6 if name == "n_init_replicas" else 12)):
        sizes = [f"{SIZES}.{name}=2", f"train.train_batch_per_replica={share}"]
        sizes += [f"{TASK}.batch_size_per_optimize=3"] if task == "nft" else []
        assert lab.equal(lab.quick(task, *sizes), lab.quick(task))


@honours("train.train_batch_per_replica")
def test_batch(lab, seen):
    lab.fresh("sft-lora", "train.train_batch_per_replica=9")
    assert seen.sizes(trained=True) == [3, 3, 3]
    line = lab.quick("nft", f"{TASK}.batch_size_per_optimize=8", "train.train_batch_per_replica=16").metrics[0]
    assert line["trained_prompt_num"] == 4


@honours("rollout.n_generation")
def test_group(lab):
    for size in (4, 6):
        line = lab.quick("nft", f"rollout.n_generation={size}").metrics[0]
        assert (line["group_size"], line["trained_prompt_num"]) == (size, 12 / size)


@honours("rollout.n_generation_mini_batch")
def test_samples_drawn_at_once(lab, seen):
    run = lab.fresh("nft", *lab.plain, "rollout.n_generation_mini_batch=6")
    assert seen.sizes(trained=False) == [6] * 2 * 3
    assert run.metrics[0]["reward/mean"] == pytest.approx(reward(lab), rel=1e-4)
    assert lab.idle("sft", "rollout.n_generation_mini_batch=6")[-1] == "rollout.n_generation_mini_batch"
