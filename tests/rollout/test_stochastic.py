"""Stochastic rollouts: where noise enters, what is recorded, and that neither depends on the batch."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from sanarl.maths import draw
from sanarl.maths.sde import Dynamics, log_prob
from sanarl.maths.solvers import solve
from sanarl.rollout.generate import Sampler, generate
from sanarl.rollout.stochastic import Stochastic, walk
from sanarl.types import Rollout

SIGMAS = [1.0, 0.9, 0.7, 0.4, 0.0]
HOW = Stochastic(Dynamics("sde", 0.7, 0.9), window=2, first=0, end=3, keep_means=True, same_latent=False)
IDS, GROUPS = torch.tensor([3, 8, 1, 5]), torch.tensor([0, 0, 1, 1])
KEY = (5, 2)
SHAPE = (2, 3, 3)


def velocity(x, sigma):
    return 0.3 * x + 0.1 * torch.sin(3 * x) - 0.5 * sigma.view(-1, 1, 1, 1)


def start(ids=IDS):
    return draw.normal(ids, SHAPE, *KEY, "noise")


@pytest.mark.parametrize("kind", ["sde", "cps"])
def test_a_walk_written_out(kind):
    # Reference: one sample at a time, step by step: Euler outside the window, mean + std * noise within.
    how = replace(HOW, dynamics=Dynamics(kind, 0.7, 0.9))
    starts = torch.tensor([0, 1, 1, 0])
    latents, path = walk(velocity, start(), SIGMAS, IDS, starts, how, KEY)
    for row in range(4):
        one = slice(row, row + 1)
        x = start()[one]
        for step, (s, after) in enumerate(pairwise(SIGMAS)):
            sigma, sigma_next = torch.tensor([s]), torch.tensor([after])
            v, place = velocity(x, sigma), step - int(starts[row])
            if not 0 <= place < 2:
                x = x + (after - s) * v
                continue
            p = how.dynamics.transition(x, v, sigma, sigma_next)
            torch.testing.assert_close(path.latents[one, place], x)
            torch.testing.assert_close(path.means[one, place], p.mean)
            x = p.mean + p.std.view(-1, 1, 1, 1) * draw.normal(IDS[one], SHAPE, *KEY, "step", step)
            torch.testing.assert_close(path.latents[one, place + 1], x)
            torch.testing.assert_close(path.log_probs[one, place], log_prob(x, p))
            assert path.sigmas[row, place : place + 2].tolist() == torch.tensor([s, after]).tolist()
        torch.testing.assert_close(latents[one], x)


def test_without_noise_a_walk_is_eulers_method():
    # Reference: the deterministic solver.
    how = replace(HOW, dynamics=Dynamics("cps", 0.0, 0.9), window=3)
    latents, _ = walk(velocity, start(), SIGMAS, IDS, torch.zeros(4).long(), how, KEY)
    straight = solve(lambda x, s: velocity(x, torch.full((len(x),), s)), start(), SIGMAS, "euler")
    torch.testing.assert_close(latents, straight)


def test_the_last_step_is_never_stochastic():
    # Reference: Euler's step from the end of the path, whatever the noise.
    latents, path = walk(velocity, start(), SIGMAS, IDS, torch.ones(4).long(), replace(HOW, window=2), KEY)
    x = path.latents[:, -1]
    torch.testing.assert_close(latents, x - 0.4 * velocity(x, torch.full((4,), 0.4)))


@pytest.mark.parametrize("kind", ["sde", "cps"])
def test_stochastic_samples_are_distributed_as_the_models(kind):
    # Reference: data N(m, d^2) has the velocity of its exact posterior mean; samples of any step rule must have that
    # mean and deviation, up to the discretisation of 60 steps and the error of 40000 draws.
    m, d, n, steps = 0.8, 0.5, 40000, 60

    def exact(x, sigma):
        s = sigma[0]
        data = m + (x - (1 - s) * m) * d**2 * (1 - s) / ((1 - s) ** 2 * d**2 + s**2)
        return (x - data) / s

    sigmas = [1 - i / steps for i in range(steps)] + [0.0]
    how = Stochastic(Dynamics(kind, 0.7 if kind == "sde" else 0.3, sigmas[1]), steps - 1, 0, steps - 1, False, False)
    ids = torch.tensor([0])
    x = torch.randn(1, n, 1, generator=torch.Generator().manual_seed(0))
    latents, _ = walk(exact, x, sigmas, ids, torch.tensor([0]), how, KEY)
    assert latents.mean().item() == pytest.approx(m, abs=0.02)
    assert latents.std().item() == pytest.approx(d, abs=0.03)


def test_the_path_does_not_depend_on_the_batch():
    # Reference: all four samples at once; here one at a time and in another order.
    starts = torch.tensor([0, 1, 1, 0])
    latents, path = walk(velocity, start(), SIGMAS, IDS, starts, HOW, KEY)
    for row in (2, 0, 3, 1):
        one = torch.tensor([row])
        alone, short = walk(velocity, start()[one], SIGMAS, IDS[one], starts[one], HOW, KEY)
        assert torch.equal(alone, latents[one])
        for name in ("latents", "sigmas", "log_probs", "means"):
            assert torch.equal(getattr(short, name), getattr(path[one], name))


def test_windows_are_drawn_for_a_group_and_stay_in_range():
    # Reference: by hand: windows of 2 in steps 1 to 5 start at 1, 2, 3 or 4, each about as often.
    how, groups = replace(HOW, first=1, end=6), torch.arange(400) // 2
    starts = how.starts(groups, KEY)
    assert torch.equal(starts[::2], starts[1::2])
    counts = torch.bincount(starts[::2], minlength=5)
    assert counts[0] == 0
    assert counts[1:].min() > 30
    assert torch.equal(how.starts(groups[[7, 3]], KEY), starts[[7, 3]])
    assert not torch.equal(how.starts(groups, (5, 3)), starts)
    assert replace(how, window=5).starts(groups, KEY).tolist() == [1] * 400


@pytest.mark.parametrize("keep_means", [False, True])
def test_planned_memory_is_what_a_path_takes(keep_means):
    # Reference: the bytes of the tensors.
    _, path = walk(velocity, start(), SIGMAS, IDS, torch.zeros(4).long(), replace(HOW, keep_means=keep_means), KEY)
    held = [t for t in (path.latents, path.sigmas, path.log_probs, path.means) if t is not None]
    assert 4 * replace(HOW, keep_means=keep_means).sample_bytes(SHAPE) == sum(
        t.numel() * t.element_size() for t in held
    )


# ---- through a model

PROMPTS = ["a red circle", "a red circle", "two blue squares", "two blue squares"]


def sampled(policy, mini_batch=4, guidance=1.0, **changes):
    sampler = Sampler(4, guidance, "euler", 1.0, mini_batch, stochastic=replace(HOW, **changes))
    parts = [part for _, part, _ in generate(policy, PROMPTS, IDS, GROUPS, sampler, KEY)]
    return Rollout.cat(parts)


@pytest.fixture(scope="module", params=[1, 5], ids=["image", "video"])
def policy(request, make_policy):
    return make_policy(frames=request.param)


@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_rollouts_carry_their_path_whatever_the_mini_batch(policy, guidance):
    # Reference: one batch of four rows. Tolerance: the model's kernels round otherwise for other batches.
    whole, split = (sampled(policy, mini_batch, guidance) for mini_batch in (4, 3))
    assert whole.path.latents.shape == (4, 3, *policy.model.latent_shape)
    assert whole.path.latents.dtype == torch.float32
    assert whole.path.latents.device.type == "cpu"
    for name in ("latents", "sigmas", "log_probs", "means"):
        torch.testing.assert_close(getattr(split.path, name), getattr(whole.path, name), rtol=0, atol=2e-5 * guidance)
    torch.testing.assert_close(split.latents, whole.latents, rtol=0, atol=2e-5 * guidance)


def test_a_group_may_share_its_starting_noise(policy):
    # Reference: before their first stochastic step the samples of a group are the same, and differ after it.
    shared, apart = sampled(policy, same_latent=True).path.latents, sampled(policy).path.latents
    torch.testing.assert_close(shared[0, 0], shared[1, 0], rtol=0, atol=1e-5)
    assert (shared[0, 1] - shared[1, 1]).abs().mean() > 0.1
    assert (apart[0, 0] - apart[1, 0]).abs().mean() > 0.1
    assert (shared[0, 0] - shared[2, 0]).abs().mean() > 0.1
