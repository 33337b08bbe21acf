"""Advantage Weighted Matching's terms: written out, as pretraining's weighted gradient, and cut into mini-batches."""

from dataclasses import replace

import pytest
import torch

from sanarl.algorithms import awm, forward
from sanarl.maths import draw
from sanarl.runtime.step import StepGuard, optimise
from sanarl.runtime.world import World
from sanarl.types import Rollout

pytestmark = pytest.mark.parametrize("frames", [1, 5], ids=["image", "video"], indirect=True, scope="module")
PROMPTS = ["a red circle", "two blue squares", "a red circle left of a blue square", "a red circle"] * 2
IDS = torch.tensor([4, 0, 7, 2, 9, 1, 3, 12])
SETTINGS = awm.Settings(
    mini_batch=8,
    matching_power=0.25,
    epsilon_low=0.003,
    epsilon_high=0.004,
    kl_beta=0.1,
    old_kl_beta=0.7,
    advantage_clip=5.0,
    advantage_mode="all",
    timesteps_fraction=0.6,
    decay_type=1,
)
KEY = (3, 1, 0)


@torch.no_grad()
def moved(policy, seed, size=0.05):
    g = torch.Generator().manual_seed(seed)
    for master in policy.masters:
        master += size * torch.randn(master.shape, generator=g)
    policy.publish()
    policy.learner_moved()
    return policy


@pytest.fixture
def at_old(make_policy):
    """Old and learner are the same, the reference another."""
    policy = moved(make_policy(size=(32, 32)), seed=2)
    policy.blend_old(0.0)
    return policy


@pytest.fixture
def off(at_old):
    """Learner, old and reference all different."""
    return moved(at_old, seed=3)


def rollout(policy):
    """Clean samples with advantages beyond the clip at both ends."""
    return Rollout(
        ids=IDS,
        groups=torch.arange(8) // 4,
        prompts=PROMPTS,
        cond=policy.model.encode_prompts(PROMPTS),
        latents=torch.randn(8, *policy.model.latent_shape, generator=torch.Generator().manual_seed(1)),
        sigmas=torch.tensor([1.0, 0.8, 0.6, 0.4, 0.2]).expand(8, -1),
        advantages=torch.linspace(-6, 6, 8),
    )


def gradient_and_metrics(policy, settings=SETTINGS):
    """Gradients of the masters and what is logged; the step itself is taken with a learning rate of 0."""
    was = policy.old_is_learner
    optimizer = torch.optim.SGD(policy.masters, lr=0.0)
    found = awm.terms(policy, rollout(policy), settings, KEY)
    metrics = optimise(found, policy, optimizer, grad_clip=0.0, share=1.0, world=World(), guard=StepGuard(1), step=1)
    policy.old_is_learner = was
    return [m.grad.clone() for m in policy.masters], metrics


def distance(ones, others):
    a, b = torch.cat([t.flatten() for t in ones]), torch.cat([t.flatten() for t in others])
    return ((a - b).norm() / b.norm()).item()


def passes(policy):
    """(row, x_t, sigma, noise) of every sample at its noise levels, a sample at a time."""
    batch = rollout(policy)
    for row in range(8):
        one = batch[torch.tensor([row])]
        levels = draw.permutations(one.ids, 5, *KEY, "sigma")[0, :3]
        for j, sigma in enumerate(one.sigmas[0, levels]):
            noise = draw.normal(one.ids, one.latents.shape[1:], *KEY, "noise", j)
            yield row, one, (1 - sigma) * one.latents + sigma * noise, sigma.view(1), noise


def written_out(policy, settings):
    """Loss with plain arithmetic, one row at a time; the parts of it and how many ratios the clip stops."""
    losses, olds, kls, held, given = [], [], [], [], list(passes(policy))
    with torch.no_grad():  # before any graph is made: values change places in the slot
        with policy.old():
            by_old = [policy.model.velocity(x_t, sigma, one.cond) for _, one, x_t, sigma, _ in given]
        with policy.reference():
            by_reference = [policy.model.velocity(x_t, sigma, one.cond) for _, one, x_t, sigma, _ in given]
    for (row, one, x_t, sigma, noise), v_old, v_reference in zip(given, by_old, by_reference, strict=True):
        v = policy.velocity(x_t, sigma, one.cond)
        target, p = noise - one.latents, settings.matching_power
        mine, theirs = ((x - target).square().mean() ** p / p for x in (v, v_old))
        ratio = torch.exp(sigma * (theirs - mine))
        a = (-6 + 12 * row / 7) / 5
        a = max(min(a, 1.0), -1.0)
        free = ratio * a
        bound = ratio.clamp(1 - settings.epsilon_low, 1 + settings.epsilon_high) * a
        losses.append(-torch.minimum(free, bound).squeeze())
        held.append(float(bound < free))
        olds.append((v - v_old).square().mean())
        kls.append((v - v_reference).square().mean())
    policy_loss, old, kl = (torch.stack(x).mean() for x in (losses, olds, kls))
    return policy_loss, old, kl, sum(held) / len(held)


@pytest.mark.parametrize("power", [0.25, 1.0])
def test_loss_and_gradient_written_out(off, power):
    settings = replace(SETTINGS, matching_power=power)
    gradient, metrics = gradient_and_metrics(off, settings)
    policy_loss, old, kl, held = written_out(off, settings)
    assert metrics["policy_loss"] == pytest.approx(policy_loss.item(), abs=1e-5)
    assert metrics["old_deviate"] == pytest.approx(old.item(), rel=1e-4)
    assert metrics["kl_div_loss"] == pytest.approx(kl.item(), rel=1e-4)
    assert metrics["clip_fraction"] == pytest.approx(held)
    assert 0 < held < 1
    loss = policy_loss + 0.7 * old + 0.1 * kl
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    for master in off.masters:
        master.grad = None
    loss.backward()
    off.collect_gradients()
    assert distance(gradient, [m.grad for m in off.masters]) < 1e-3


def test_the_first_update_is_pretraining_weighted_by_advantages(at_old):
    # Reference: the paper's claim: at the old policy the gradient is that of flow matching, weighted by A (here over
    # the clip) and sigma; without ratio, clip or anchors.
    settings = replace(SETTINGS, matching_power=1.0, kl_beta=0.0)
    gradient, metrics = gradient_and_metrics(at_old, settings)
    for master in at_old.masters:
        master.grad = None
    for row, one, x_t, sigma, noise in passes(at_old):
        a = max(min(-6 + 12 * row / 7, 5.0), -5.0) / 5
        error = (at_old.velocity(x_t, sigma, one.cond) - (noise - one.latents)).square().mean()
        (a * sigma * error / 24).sum().backward()
    at_old.collect_gradients()
    assert distance(gradient, [m.grad for m in at_old.masters]) < 1e-4
    assert (metrics["ratio"], metrics["ratio_deviation"], metrics["clip_fraction"]) == (1, 0, 0)
    assert metrics["old_deviate"] == 0
    assert metrics["matching_error"] > 0.5


@pytest.mark.parametrize("mini_batch", [1, 3])
def test_mini_batches_change_no_gradient_and_no_metric(off, mini_batch):
    # Reference: one mini-batch of 8. Tolerance: float32 sums in another order.
    settings = replace(SETTINGS, epsilon_low=0.9, epsilon_high=9.0)  # no ratio at the edge of the clip
    gradient, metrics = gradient_and_metrics(off, settings)
    split, split_metrics = gradient_and_metrics(off, replace(settings, mini_batch=mini_batch))
    assert distance(split, gradient) < 1e-4
    assert split_metrics == pytest.approx(metrics, rel=1e-3, abs=1e-5)
    assert metrics["grad_norm"] > 0


def test_without_anchors_the_reference_is_not_run(off, monkeypatch):
    monkeypatch.setattr(off, "reference", lambda: pytest.fail("the reference was run"))
    found = list(awm.terms(off, rollout(off), replace(SETTINGS, kl_beta=0.0), KEY))
    assert len(found) == 3
    assert sum(term.weight for term in found) == pytest.approx(1)
    assert "kl_div_loss" not in found[0].metrics


@pytest.mark.parametrize(("kind", "updates", "decay"), [(0, 9, 0.0), (1, 100, 0.1), (3, 2, 0.4)])
def test_old_follows_after_a_rollout(off, kind, updates, decay):
    # Reference: decay * old + (1 - decay) * learner with the decay of that kind at that update.
    before = [v.clone() for v in off.sets["old"]]
    forward.after_rollout(off, updates, replace(SETTINGS, decay_type=kind, decay_value=0.8, decay_steps=4))
    for old, was, master in zip(off.sets["old"], before, off.masters, strict=True):
        torch.testing.assert_close(old, decay * was + (1 - decay) * master.detach())
