"""[policy.diffusers.sample], [policy.parallelism] and [rollout]: each case shows its key being honoured or refused."""

import pytest

from sanarl.config import ConfigError

pytestmark = pytest.mark.parametrize("frames", [1, 5], ids=["image", "video"], indirect=True, scope="module")
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
    assert found["ddim"] == pytest.approx(found["euler"], rel=1e-5)
    assert found["dpm1"] == pytest.approx(found["euler"], rel=1e-5)
    assert found["dpm2"] != pytest.approx(found["euler"], rel=5e-5)


@honours(f"{SAMPLE}.flow_shift")
def test_shift(lab):
    assert reward(lab, f"{SAMPLE}.flow_shift=3.0") == reward(lab)  # the model's own
    assert reward(lab, f"{SAMPLE}.flow_shift=1.0") != pytest.approx(reward(lab), rel=5e-5)


@honours(f"{SAMPLE}.global_std")
def test_deviation_of_the_rollout_or_of_groups(lab):
    groups, whole = (lab.quick("nft", f"{SAMPLE}.global_std={value}") for value in ("false", "true"))
    assert whole.metrics[0]["reward/mean"] == groups.metrics[0]["reward/mean"]
    assert not lab.equal(whole, groups)


@honours(f"{SAMPLE}.deterministic_sampling")
def test_each_algorithm_has_its_sampling(lab):
    with pytest.raises(ConfigError, match=r"deterministic_sampling: found false; accepted true"):
        lab.loaded("nft", f"{SAMPLE}.deterministic_sampling=false")
    with pytest.raises(ConfigError, match=r"deterministic_sampling: found true; accepted false"):
        lab.loaded("flowgrpo", f"{SAMPLE}.deterministic_sampling=true")
    assert lab.loaded("nft", f"{SAMPLE}.deterministic_sampling=true").config.task == "nft"
    assert lab.loaded("flowgrpo", f"{SAMPLE}.deterministic_sampling=false").config.task == "flowgrpo"


# ---- stochastic steps


def stochastic_reward(lab, *overrides):
    """Mean reward of a rollout with stochastic steps."""
    return lab.quick("flowgrpo", *lab.plain, *overrides).metrics[0]["reward/mean"]


@honours(f"{SAMPLE}.noise_level", f"{SAMPLE}.sde_type", f"{SAMPLE}.same_latent")
def test_stochastic_steps(lab):
    cps = f'{SAMPLE}.sde_type="cps"'
    noises = [f"{SAMPLE}.noise_level={level}" for level in (0.3, 0.6)]
    same = f"{SAMPLE}.same_latent=true"
    asked = [(), *((noise,) for noise in noises), *((noise, cps) for noise in noises), (same,)]
    assert len({stochastic_reward(lab, *overrides) for overrides in asked}) == len(asked)
    tiny, reference = f"{SAMPLE}.noise_level=1e-4", reward(lab)
    assert stochastic_reward(lab, tiny) == pytest.approx(reference, rel=1e-4)  # the ODE
    assert stochastic_reward(lab, tiny, cps) == pytest.approx(reference, rel=1e-4)
    idle = ["noise_level", "sde_type", "same_latent", "sde_window_size", "sde_window_range"]
    values = ["0.5", '"cps"', "true", "1", "[0, 1]"]
    found = lab.idle("nft", *(f"{SAMPLE}.{name}={value}" for name, value in zip(idle, values, strict=True)))
    assert sorted(found) == sorted(f"{SAMPLE}.{name}" for name in idle)


@honours(f"{SAMPLE}.sde_window_size", f"{SAMPLE}.sde_window_range")
def test_window_of_stochastic_steps(lab, seen):
    # By hand: of 3 steps two are stochastic; 12 samples in mini-batches of 5, a pass for every step trained.
    every = "policy.diffusers.timesteps_fraction=1.0"
    for overrides, steps in (
        ((), 2),
        ((f"{SAMPLE}.sde_window_size=1",), 1),
        ((f"{SAMPLE}.sde_window_range=[0, 1]",), 1),
    ):
        seen.passes.clear()
        lab.fresh("flowgrpo", *lab.plain, every, *overrides)
        assert sorted(seen.sizes(trained=True)) == sorted([5, 5, 2] * steps)
    first, second = (stochastic_reward(lab, f"{SAMPLE}.sde_window_range=[{a}, {a + 1}]") for a in (0, 1))
    assert first != second


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
