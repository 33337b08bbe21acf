import math

import pytest
import torch

from sanarl.maths.flow import interpolate, per_sample
from sanarl.maths.nft import kept_timesteps, nft_loss, old_policy_decay, optimality, restrict


def tensors(case, *names):
    return [torch.tensor(case[name], dtype=torch.float64) for name in names]


@pytest.mark.parametrize("number", range(3))
def test_golden_losses_and_gradients(golden, number):
    # Reference: published losses, their sides and the gradient of the whole loss, in float64.
    case = golden["nft_loss"][number]
    x0, noise, sigma, v, v_old, v_reference = tensors(case, "x0", "noise", "t", "forward", "old", "reference")
    v.requires_grad_()
    clip = case["advantage_clip"]
    r = optimality(torch.tensor(case["advantages"], dtype=torch.float64), clip)
    out = nft_loss(v, v_old, x0, interpolate(x0, noise, sigma), sigma, r, case["nft_beta"])
    kl = per_sample((v - v_reference) ** 2).mean()
    policy_loss = clip * out.policy.mean()
    loss = policy_loss + case["kl_beta"] * kl
    loss.backward()
    exact = {"rtol": 1e-9, "atol": 1e-10}
    torch.testing.assert_close(r, torch.tensor(case["r"], dtype=torch.float64), **exact)
    torch.testing.assert_close(out.positive.detach(), *tensors(case, "positive_loss"), **exact)
    torch.testing.assert_close(out.negative.detach(), *tensors(case, "negative_loss"), **exact)
    assert policy_loss.item() == pytest.approx(case["policy_loss"], rel=1e-9)
    assert kl.item() == pytest.approx(case["kl_loss"], rel=1e-9)
    assert loss.item() == pytest.approx(case["loss"], rel=1e-9)
    torch.testing.assert_close(v.grad, *tensors(case, "grad_forward"), **exact)


@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2, 2), (4, 2, 3, 2, 2)])
def test_loss_and_gradient_written_out(beta, shape):
    # Reference: the derivation, one sample at a time. With e = x_t - sigma v_old - x0 (the old policy's error),
    # d = v - v_old, N values a sample and w = max(mean |.|, 1e-5) held constant:
    #   positive error  P = e - beta sigma d,  L+ = mean(P^2) / w(P),  dL+/dv = -2 beta sigma P / (N w(P))
    #   negative error  Q = e + beta sigma d,  L- = mean(Q^2) / w(Q),  dL-/dv = +2 beta sigma Q / (N w(Q))
    #   loss = (r L+ + (1 - r) L-) / beta
    g = torch.Generator().manual_seed(0)
    v, v_old, x0, noise = torch.randn(4, *shape, dtype=torch.float64, generator=g).unbind()
    sigma = torch.tensor([0.1, 0.5, 0.9, 1.0], dtype=torch.float64)
    r = torch.tensor([0.0, 0.3, 0.5, 1.0], dtype=torch.float64)
    x_t = interpolate(x0, noise, sigma)
    v.requires_grad_()
    out = nft_loss(v, v_old, x0, x_t, sigma, r, beta)
    out.policy.sum().backward()
    for i in range(4):
        s, n, d = sigma[i], x0[i].numel(), (v[i] - v_old[i]).detach()
        error = x_t[i] - s * v_old[i] - x0[i]
        p, q = error - beta * s * d, error + beta * s * d
        positive, negative = (p**2).mean() / p.abs().mean(), (q**2).mean() / q.abs().mean()
        gradient = (-r[i] * p / p.abs().mean() + (1 - r[i]) * q / q.abs().mean()) * 2 * s / n
        torch.testing.assert_close(out.positive[i].detach(), positive)
        torch.testing.assert_close(out.negative[i].detach(), negative)
        torch.testing.assert_close(out.policy[i].detach(), (r[i] * positive + (1 - r[i]) * negative) / beta)
        torch.testing.assert_close(v.grad[i], gradient)


def test_at_the_old_policy_half_a_mark_teaches_nothing():
    # Reference: v = v_old makes P = Q, so r = 1/2 gives gradient 0 and r = 1 the opposite of r = 0.
    g = torch.Generator().manual_seed(0)
    v_old, x0, x_t = torch.randn(3, 3, 2, 2, 2, dtype=torch.float64, generator=g).unbind()
    sigma = torch.full((3,), 0.5, dtype=torch.float64)
    v_old, x0, x_t = (torch.cat([t[:1]] * 3) for t in (v_old, x0, x_t))
    v = v_old.clone().requires_grad_()
    nft_loss(v, v_old, x0, x_t, sigma, torch.tensor([0.5, 0.0, 1.0], dtype=torch.float64), 1.0).policy.sum().backward()
    assert v.grad[0].abs().max() == 0
    torch.testing.assert_close(v.grad[1], -v.grad[2])
    assert v.grad[1].abs().max() > 0


def test_a_perfect_prediction_has_loss_zero_and_a_finite_gradient():
    x0 = torch.ones(2, 3, 4, 4)
    noise = torch.zeros_like(x0)
    sigma = torch.tensor([0.3, 0.9])
    v = (noise - x0).requires_grad_()
    out = nft_loss(v, (noise - x0), x0, interpolate(x0, noise, sigma), sigma, torch.tensor([0.0, 1.0]), 1.0)
    out.policy.sum().backward()
    assert out.policy.abs().max() < 1e-6
    assert torch.isfinite(v.grad).all()


def test_half_precision_velocities_are_promoted():
    # Reference: the same call with velocities that were rounded to bfloat16 beforehand.
    g = torch.Generator().manual_seed(0)
    v, v_old, x0, x_t = torch.randn(4, 2, 3, 4, 4, generator=g).unbind()
    sigma, r = torch.tensor([0.5, 0.7]), torch.tensor([0.2, 0.8])
    out = nft_loss(v.bfloat16(), v_old.bfloat16(), x0, x_t, sigma, r, 1.0)
    expected = nft_loss(v.bfloat16().float(), v_old.bfloat16().float(), x0, x_t, sigma, r, 1.0)
    assert torch.equal(out.policy, expected.policy)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("all", [-5.0, -1.0, 0.0, 0.5, 5.0]),
        ("positive_only", [0.0, 0.0, 0.0, 0.5, 5.0]),
        ("negative_only", [-5.0, -1.0, 0.0, 0.0, 0.0]),
        ("one_only", [0.0, 0.0, 0.0, 1.0, 1.0]),
        ("binary", [-1.0, -1.0, 0.0, 1.0, 1.0]),
    ],
)
def test_advantage_modes(mode, expected):
    # Reference: the definitions, by hand, at clip 5.
    assert restrict(torch.tensor([-7.0, -1.0, 0.0, 0.5, 6.0]), mode, 5.0).tolist() == expected


def test_optimality_maps_the_clipped_range_to_probabilities():
    # Reference: clamp(A, -c, c) / (2 c) + 1/2, by hand.
    assert optimality(torch.tensor([-9.0, -2.0, 0.0, 1.0, 2.0, 9.0]), 2.0).tolist() == [0.0, 0.0, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_golden_decays(golden, kind):
    # Reference: published decays at chosen updates.
    for update, decay in golden["old_policy_decay"][str(kind)].items():
        assert old_policy_decay(int(update), kind) == pytest.approx(decay, abs=1e-12)


def test_decay_of_kind_3_rises_linearly_and_stays():
    # Reference: value * update / steps, by hand.
    assert [old_policy_decay(i, 3, 0.8, 4) for i in (0, 1, 2, 4, 5, 100)] == pytest.approx([0, 0.2, 0.4, 0.8, 0.8, 0.8])
    with pytest.raises(ValueError, match="no decay of kind 4"):
        old_policy_decay(1, 4)


@pytest.mark.parametrize(
    ("num_steps", "fraction", "kept"),
    [
        (10, 0.6, 6),
        (10, 0.3, 3),
        (10, 0.99, 9),
        (10, 1.0, 10),
        (10, 1e-6, 1),
        (1, 0.5, 1),
        (40, 0.7, 28),
        (25, 0.28, 7),
    ],
)
def test_kept_timesteps(num_steps, fraction, kept):
    # Reference: max(1, floor(T * fraction + 1e-9)), by hand; 0.28 * 25 and 0.3 * 10 are not exact in binary.
    assert kept_timesteps(num_steps, fraction) == kept
    assert kept == max(1, math.floor(round(num_steps * fraction, 6)))
