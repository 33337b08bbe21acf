from dataclasses import replace

import pytest
import torch
from peft import LoraConfig

from sanarl.models.policy import Policy

pytestmark = pytest.mark.parametrize("frames", [1, 5], ids=["image", "video"], indirect=True, scope="module")
PROMPTS = ["a red circle", "two blue squares"]


def inputs(policy, seed=0):
    x = torch.randn(2, *policy.model.latent_shape, generator=torch.Generator().manual_seed(seed))
    return x, torch.tensor([0.3, 0.8]), policy.model.encode_prompts(PROMPTS)


@torch.no_grad()
def move(policy, seed=2, size=0.05):
    """An optimiser step of a sort: other masters, published."""
    g = torch.Generator().manual_seed(seed)
    for master in policy.masters:
        master += size * torch.randn(master.shape, generator=g)
    policy.publish()
    policy.learner_moved()


def working(policy):
    """The trainable weights inside the transformer."""
    parameters = dict(policy.model.transformer.named_parameters())
    return [parameters[name].detach().clone() for name in policy.names]


def equal(ones, others):
    return all(torch.equal(a, b) for a, b in zip(ones, others, strict=True))


@torch.no_grad()
def predictions(policy):
    """Velocities of learner, old and reference."""
    x, sigma, cond = inputs(policy)
    learner = policy.velocity(x, sigma, cond)
    with policy.old():
        old = policy.velocity(x, sigma, cond)
    with policy.reference():
        reference = policy.velocity(x, sigma, cond)
    return learner, old, reference


def test_all_policies_are_the_base_model_at_the_start(make_policy, make_sana):
    # Reference: the model without an adapter; a fresh adapter adds exact zeros.
    policy, base = make_policy(), make_sana()
    x, sigma, cond = inputs(policy)
    with torch.no_grad():
        expected = base.velocity(x, sigma, cond)
    assert all(torch.equal(found, expected) for found in predictions(policy))


def test_the_three_policies_differ_after_updates(make_policy):
    policy = make_policy()
    move(policy)
    policy.blend_old(0.0)
    move(policy, seed=3)
    learner, old, reference = predictions(policy)
    for a, b in ((learner, old), (learner, reference), (old, reference)):
        assert (a - b).abs().max() > 1e-3
    again = predictions(policy)
    assert equal((learner, old, reference), again)


@pytest.mark.parametrize("settings", ["adapter", "whole"])
def test_the_learners_values_come_back_exactly(make_policy, lora, settings):
    policy = make_policy(lora if settings == "adapter" else None)
    move(policy)
    before = working(policy)
    assert equal(before, policy.masters)
    others = [torch.zeros_like(m) for m in policy.masters]
    for manager in (policy.old, policy.reference, lambda: policy.using(others)):
        with manager():
            assert not equal(working(policy), before)
        assert equal(working(policy), before)
        with pytest.raises(KeyboardInterrupt), manager():
            raise KeyboardInterrupt
        assert equal(working(policy), before)


def test_without_kept_sets_there_is_no_old_policy(make_policy):
    policy = make_policy(kept_sets=False)
    assert not policy.old_is_learner
    assert policy.sets == {}


def test_old_follows_the_learner(make_policy):
    # Reference: decay * old + (1 - decay) * learner, by hand; a decay of 0 copies bit by bit.
    policy = make_policy()
    start = [m.detach().clone() for m in policy.masters]
    move(policy)
    policy.blend_old(0.25)
    for old, first, master in zip(policy.sets["old"], start, policy.masters, strict=True):
        torch.testing.assert_close(old, 0.25 * first + 0.75 * master.detach())
    assert not policy.old_is_learner
    policy.blend_old(0.0)
    assert equal(policy.sets["old"], policy.masters)
    assert policy.old_is_learner
    move(policy)
    assert not policy.old_is_learner
    assert equal(policy.sets["reference"], start)


def test_sets_are_copies(make_policy):
    # old must not share memory with what the optimiser moves.
    policy = make_policy()
    before = [v.clone() for v in policy.sets["old"]]
    move(policy)
    assert equal(policy.sets["old"], before)
    policy.blend_old(0.0)
    copied = [v.clone() for v in policy.sets["old"]]
    move(policy, seed=5)
    assert equal(policy.sets["old"], copied)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_while_old_is_the_learner_its_prediction_is_the_learners_bit_by_bit(make_policy, dtype):
    # Reference: the prediction computed separately under old(), which the loss leaves out in that case.
    policy = make_policy(dtype=dtype)
    move(policy)
    policy.blend_old(0.0)
    assert policy.old_is_learner
    x, sigma, cond = inputs(policy)
    learner = policy.velocity(x, sigma, cond)
    assert learner.requires_grad
    with torch.no_grad(), policy.old():
        assert torch.equal(policy.velocity(x, sigma, cond), learner.detach())


def test_small_updates_accumulate_in_the_masters_of_half_precision_weights(make_policy):
    # Reference: 1000 steps of 1e-5 are 1e-2; one of them is lost in bfloat16, whose numbers near 1 are 2^-7 apart.
    policy = make_policy(dtype=torch.bfloat16)
    assert {p.dtype for p in working(policy)} == {torch.bfloat16}
    assert {m.dtype for m in policy.masters} == {torch.float32}
    with torch.no_grad():
        for master in policy.masters:
            master.fill_(1.0)
        policy.publish()
        for step in range(1000):
            for master in policy.masters:
                master += 1e-5
            policy.publish()
            if step == 0:
                assert all((w == 1).all() for w in working(policy))
    assert all(torch.allclose(m, torch.full_like(m, 1.01), atol=1e-4) for m in policy.masters)
    assert all((w.float() == 1 + 2**-7).all() for w in working(policy))


def test_gradients_move_to_the_masters_and_add_up(make_policy):
    # Reference: torch.autograd on the working weights.
    policy = make_policy()
    move(policy)
    x, sigma, cond = inputs(policy)
    parameters = dict(policy.model.transformer.named_parameters())
    loss = policy.velocity(x, sigma, cond).square().mean()
    expected = torch.autograd.grad(loss, [parameters[n] for n in policy.names])
    for _ in range(2):
        policy.velocity(x, sigma, cond).square().mean().backward()
        policy.collect_gradients()
    for master, name, gradient in zip(policy.masters, policy.names, expected, strict=True):
        assert parameters[name].grad is None
        torch.testing.assert_close(master.grad, 2 * gradient, rtol=1e-5, atol=1e-8)


@pytest.mark.filterwarnings("ignore:Already found a `peft_config`")  # PEFT, about having two
def test_switching_values_is_switching_peft_adapters(make_policy, make_sana, lora):
    # Reference: two PEFT adapters on one transformer, switched with set_adapter, and none with disable_adapters.
    policy = make_policy()
    move(policy)
    policy.blend_old(0.0)
    move(policy, seed=3)
    model = make_sana()
    peft = LoraConfig(r=lora.r, lora_alpha=lora.alpha, target_modules=lora.target_modules)
    for name, values in (("learner", policy.masters), ("old", policy.sets["old"])):
        model.transformer.add_adapter(peft, adapter_name=name)
        parameters = dict(model.transformer.named_parameters())
        with torch.no_grad():
            for place, value in zip(policy.names, values, strict=True):
                parameters[place.replace(".default.", f".{name}.")].copy_(value)
    x, sigma, cond = inputs(policy)
    learner, old, reference = predictions(policy)
    with torch.no_grad():
        model.transformer.set_adapter("learner")
        assert torch.equal(model.velocity(x, sigma, cond), learner)
        model.transformer.set_adapter("old")
        assert torch.equal(model.velocity(x, sigma, cond), old)
        model.transformer.disable_adapters()
        torch.testing.assert_close(model.velocity(x, sigma, cond), reference, rtol=0, atol=1e-6)


def test_whole_transformer(make_policy):
    policy = make_policy(None, kept_sets=False)
    everything = dict(policy.model.transformer.named_parameters())
    assert set(policy.names) == set(everything)
    x, sigma, cond = inputs(policy)
    before = policy.velocity(x, sigma, cond).detach()
    move(policy)
    assert (policy.velocity(x, sigma, cond) - before).abs().max() > 1e-3


def test_state_goes_into_another_policy(make_policy):
    # Reference: the policy that was saved.
    policy, other = make_policy(), make_policy()
    move(policy)
    policy.blend_old(0.3)
    other.load_state_dict(policy.state_dict())
    assert equal(working(other), working(policy))
    assert other.old_is_learner == policy.old_is_learner
    assert equal(predictions(other), predictions(policy))


def test_a_state_that_does_not_fit_is_refused(make_policy, lora):
    policy = make_policy()
    with pytest.raises(ValueError, match="value sets"):
        policy.load_state_dict(make_policy(kept_sets=False).state_dict())
    with pytest.raises(ValueError, match=r"'learner' values do not fit this model, first at \S*lora_A"):
        policy.load_state_dict(make_policy(replace(lora, r=2)).state_dict())
    with pytest.raises(ValueError, match="do not fit"):
        policy.load_state_dict(make_policy(replace(lora, target_modules=["attn1.to_q"])).state_dict())


def test_starting_values_must_be_those_of_the_trainable_parameters(make_sana):
    model = make_sana()
    model.transformer.requires_grad_(True)
    with pytest.raises(AssertionError, match="do not fit"):
        Policy(model, {"something.else": torch.zeros(1)}, torch.float32, kept_sets=False)


def old_values_were_kept(policy):
    """Whether old still predicts as before when the learner moves on."""
    policy.blend_old(0.0)
    before = predictions(policy)[1]
    move(policy, seed=7)
    return torch.equal(predictions(policy)[1], before)


def test_defect_old_values_not_copied_is_caught(make_policy, monkeypatch):
    policy = make_policy()
    move(policy)
    assert old_values_were_kept(policy)

    def blend_by_reference(self, decay):
        self.sets["old"] = [m.detach() for m in self.masters]
        self.old_is_learner = decay == 0.0

    monkeypatch.setattr(Policy, "blend_old", blend_by_reference)
    assert not old_values_were_kept(policy)
