"""The terms of SFT and DiffusionNFT, and that cutting a step into mini-batches changes nothing but rounding."""

from dataclasses import replace

import pytest
import torch

from sanarl.algorithms import forward, nft, sft
from sanarl.maths import draw
from sanarl.maths.flow import interpolate
from sanarl.maths.nft import nft_loss
from sanarl.runtime.step import StepGuard, optimise
from sanarl.runtime.world import World
from sanarl.types import Rollout

pytestmark = pytest.mark.parametrize("frames", [1, 5], ids=["image", "video"], indirect=True, scope="module")
PROMPTS = ["a red circle", "two blue squares", "", "a red circle"] * 2
IDS = torch.tensor([4, 0, 7, 2, 9, 1, 3, 12])
SFT = sft.Settings(mini_batch=8, density="logit_normal", logit_mean=0.2, logit_std=1.0, flow_shift=3.0)
NFT = nft.Settings(
    mini_batch=8,
    nft_beta=0.5,
    kl_beta=0.1,
    advantage_clip=5.0,
    advantage_mode="all",
    timesteps_fraction=0.6,
    decay_type=1,
)
KEY = (3, 1)


def media(policy):
    latents = policy.model.latent_shape
    frames = 1 if len(latents) == 3 else 4 * latents[1] - 3
    return list(torch.rand(8, frames, 3, 32, 64, generator=torch.Generator().manual_seed(0)))


def clean(policy):
    """The latents of ``media``."""
    return list(policy.model.encode_media(torch.stack(media(policy)), mini_batch=8))


@torch.no_grad()
def moved(policy, seed=2, size=0.05):
    g = torch.Generator().manual_seed(seed)
    for master in policy.masters:
        master += size * torch.randn(master.shape, generator=g)
    policy.publish()
    policy.learner_moved()
    return policy


@pytest.fixture
def policy(make_policy):
    """Learner, old and reference all different."""
    policy = moved(make_policy())
    policy.blend_old(0.0)
    return moved(policy, seed=3)


def rollout(policy, advantages=None):
    g = torch.Generator().manual_seed(1)
    return Rollout(
        ids=IDS,
        groups=torch.arange(8) // 4,
        prompts=PROMPTS,
        cond=policy.model.encode_prompts(PROMPTS),
        latents=torch.randn(8, *policy.model.latent_shape, generator=g),
        sigmas=torch.tensor([1.0, 0.8, 0.6, 0.4, 0.2]).expand(8, -1),
        advantages=torch.linspace(-6, 6, 8) if advantages is None else advantages,
    )


def terms(algorithm, policy, mini_batch, rows=slice(None)):
    if algorithm == "sft":
        captions = PROMPTS[rows]
        settings = replace(SFT, mini_batch=mini_batch, caption_dropout=0.3)
        return sft.terms(policy, clean(policy)[rows], captions, IDS[rows], settings, KEY)
    part = rollout(policy)[torch.arange(8)[rows]]
    return nft.terms(policy, part, replace(NFT, mini_batch=mini_batch), KEY)


def gradient_and_metrics(algorithm, policy, mini_batch):
    """Gradients of the masters and what is logged; the step itself is taken with a learning rate of 0."""
    optimizer = torch.optim.SGD(policy.masters, lr=0.0)
    metrics = optimise(
        terms(algorithm, policy, mini_batch),
        policy,
        optimizer,
        grad_clip=0.0,
        share=1.0,
        world=World(),
        guard=StepGuard(1),
        step=1,
    )
    return [m.grad.clone() for m in policy.masters], metrics


def distance(ones, others):
    """Relative distance of two lists of tensors."""
    a, b = torch.cat([t.flatten() for t in ones]), torch.cat([t.flatten() for t in others])
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("algorithm", ["sft", "nft"])
@pytest.mark.parametrize("mini_batch", [1, 2, 3])
def test_mini_batches_change_no_gradient_and_no_metric(policy, algorithm, mini_batch):
    # Reference: one mini-batch of 8. Tolerance: float32 sums in another order.
    gradient, metrics = gradient_and_metrics(algorithm, policy, 8)
    split, split_metrics = gradient_and_metrics(algorithm, policy, mini_batch)
    assert distance(split, gradient) < 1e-4
    assert split_metrics == pytest.approx(metrics, rel=1e-4)
    assert metrics["grad_norm"] > 0


@pytest.mark.parametrize("algorithm", ["sft", "nft"])
def test_defect_order_dependent_noise_is_caught(policy, algorithm, monkeypatch):
    def by_order(ids, shape, *key):
        return torch.randn(len(ids), *shape, generator=draw.generator(*key))

    monkeypatch.setattr(draw, "normal", by_order)
    gradient, _ = gradient_and_metrics(algorithm, policy, 8)
    split, _ = gradient_and_metrics(algorithm, policy, 2)
    assert distance(split, gradient) > 1e-2


@pytest.mark.parametrize("algorithm", ["sft", "nft"])
def test_the_parts_of_two_ranks_add_up(policy, algorithm):
    # Reference: all rows on one rank; here 3 and 5 rows with their shares.
    whole, metrics = gradient_and_metrics(algorithm, policy, 2)
    total, logged = [torch.zeros_like(m) for m in policy.masters], {}
    for rows in (slice(0, 3), slice(3, 8)):
        share = (rows.stop - rows.start) / 8
        weights = 0.0
        for term in terms(algorithm, policy, 2, rows):
            (term.loss * term.weight * share).backward()
            weights += term.weight
            for name, value in {"loss": term.loss.detach(), **term.metrics}.items():
                logged[name] = logged.get(name, 0.0) + float(value) * term.weight * share
        assert weights == pytest.approx(1.0)
        for master in policy.masters:
            master.grad = None
        policy.collect_gradients()
        total = [t + m.grad for t, m in zip(total, policy.masters, strict=True)]
    assert distance(total, whole) < 1e-4
    assert logged == pytest.approx({k: v for k, v in metrics.items() if k != "grad_norm"}, rel=1e-4)


def test_flow_matching_loss_written_out(policy):
    # Reference: mean((v - (noise - x0))^2) of every sample on its own, averaged.
    model, expected = policy.model, []
    for row in range(8):
        ids = IDS[row : row + 1]
        x0 = model.encode_media(media(policy)[row][None], mini_batch=1)
        noise = draw.normal(ids, x0.shape[1:], *KEY, "noise")
        z = draw.normal(ids, (), *KEY, "sigma").double()
        t = torch.sigmoid(0.2 + z)
        sigma = (3 * t / (1 + 2 * t)).float()
        with torch.no_grad():
            v = policy.velocity((1 - sigma) * x0 + sigma * noise, sigma, model.encode_prompts(PROMPTS[row : row + 1]))
        expected.append(((v - noise + x0) ** 2).mean().item())
    found = list(sft.terms(policy, clean(policy), PROMPTS, IDS, SFT, KEY))
    assert [t.weight for t in found] == [1.0]
    assert found[0].loss.item() == pytest.approx(sum(expected) / 8, rel=1e-5)


def test_a_rank_without_rows_has_no_terms(policy):
    assert list(sft.terms(policy, [], [], IDS[:0], SFT, KEY)) == []


def test_captions_are_dropped_by_identity(policy, monkeypatch):
    # Reference: the share of dropped captions, and the same ones whatever the mini-batch.
    seen = []
    encode = policy.model.encode_prompts
    monkeypatch.setattr(policy.model, "encode_prompts", lambda prompts: (seen.extend(prompts), encode(prompts))[1])
    captions = [f"a red circle {i}" for i in range(8)]
    dropped = {}
    for mini_batch in (8, 3):
        seen.clear()
        settings = replace(SFT, mini_batch=mini_batch, caption_dropout=0.5)
        list(sft.terms(policy, clean(policy), captions, IDS, settings, KEY))
        dropped[mini_batch] = [caption == "" for caption in seen]
    assert dropped[8] == dropped[3]
    assert dropped[8] == [u < 0.5 for u in draw.uniform(IDS, *KEY, "caption").tolist()]
    assert 0 < sum(dropped[8]) < 8
    assert captions[0] == "a red circle 0"


@torch.no_grad()
def expected_nft(policy, batch, settings):
    """Policy loss and KL written out: every sample at its own noise levels, one at a time."""
    losses, distances = [], []
    kept = 3  # of 5 levels, at a fraction of 0.6
    for row in range(8):
        one = batch[torch.tensor([row])]
        order = draw.permutations(one.ids, 5, *KEY, "sigma")[0, :kept]
        for j, place in enumerate(order.tolist()):
            sigma = one.sigmas[:, place]
            noise = draw.normal(one.ids, one.latents.shape[1:], *KEY, "noise", j)
            x_t = interpolate(one.latents, noise, sigma)
            v = policy.velocity(x_t, sigma, one.cond)
            with policy.old():
                v_old = policy.velocity(x_t, sigma, one.cond)
            with policy.reference():
                v_reference = policy.velocity(x_t, sigma, one.cond)
            r = one.advantages.clamp(-5, 5) / 10 + 0.5
            losses.append(5 * nft_loss(v, v_old, one.latents, x_t, sigma, r, settings.nft_beta).policy.item())
            distances.append(((v - v_reference) ** 2).mean().item())
    return sum(losses) / len(losses), sum(distances) / len(distances)


def test_nft_loss_written_out(policy):
    # Reference: expected_nft, one sample and one noise level at a time.
    batch = rollout(policy)
    policy_loss, kl = expected_nft(policy, batch, NFT)
    _, metrics = gradient_and_metrics("nft", policy, 8)
    assert metrics["policy_loss"] == pytest.approx(policy_loss, rel=1e-5)
    assert metrics["kl_div_loss"] == pytest.approx(kl, rel=1e-5)
    assert metrics["loss"] == pytest.approx(policy_loss + 0.1 * kl, rel=1e-5)
    assert metrics["x0_norm"] == pytest.approx(batch.latents.square().mean().item(), rel=1e-5)
    assert metrics["old_deviate"] > 0
    assert metrics["old_kl_div"] > 0


def test_defect_old_values_not_copied_is_caught(policy, monkeypatch):
    # Reference: expected_nft. A loss that runs old() without old's values compares the learner with itself.
    policy_loss, _ = expected_nft(policy, rollout(policy), NFT)
    monkeypatch.setattr(policy, "using", lambda _: torch.no_grad())
    _, metrics = gradient_and_metrics("nft", policy, 8)
    assert metrics["old_deviate"] == 0
    assert metrics["policy_loss"] != pytest.approx(policy_loss, rel=1e-5)


def test_a_prediction_shared_by_old_and_learner_is_the_separate_one(make_policy):
    # Reference: the same loss with old_is_learner switched off by hand, bit by bit.
    policy = moved(make_policy())
    policy.blend_old(0.0)
    assert policy.old_is_learner
    shared, metrics = gradient_and_metrics("nft", policy, 4)
    policy.old_is_learner = False
    separate, separate_metrics = gradient_and_metrics("nft", policy, 4)
    assert all(torch.equal(a, b) for a, b in zip(shared, separate, strict=True))
    assert metrics == separate_metrics
    assert metrics["old_deviate"] == 0


def test_without_kl_the_reference_is_not_run(policy, monkeypatch):
    monkeypatch.setattr(policy, "reference", lambda: pytest.fail("the reference was run"))
    found = list(nft.terms(policy, rollout(policy), replace(NFT, kl_beta=0.0), KEY))
    assert len(found) == 3
    assert "kl_div_loss" not in found[0].metrics


def test_half_advantage_samples_teach_nothing_at_the_old_policy(make_policy):
    # Reference: at v = v_old and r = 1/2 the two sides cancel.
    policy = moved(make_policy())
    policy.blend_old(0.0)
    batch = rollout(policy, torch.zeros(8))
    for term in nft.terms(policy, batch, replace(NFT, kl_beta=0.0), KEY):
        (term.loss * term.weight).backward()
    policy.collect_gradients()
    assert max(m.grad.abs().max() for m in policy.masters) < 1e-7


@pytest.mark.parametrize(("kind", "updates", "decay"), [(0, 9, 0.0), (1, 100, 0.1), (3, 2, 0.4)])
def test_old_follows_after_a_rollout(policy, kind, updates, decay):
    # Reference: decay * old + (1 - decay) * learner with the decay of that kind at that update.
    before = [v.clone() for v in policy.sets["old"]]
    forward.after_rollout(policy, updates, replace(NFT, decay_type=kind, decay_value=0.8, decay_steps=4))
    for old, was, master in zip(policy.sets["old"], before, policy.masters, strict=True):
        torch.testing.assert_close(old, decay * was + (1 - decay) * master.detach())
