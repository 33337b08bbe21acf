import math

import pytest
import torch

from sanarl.maths.sde import Dynamics, Transition, cps_transition, gaussian_kl, log_prob, sde_transition


@pytest.mark.parametrize("case", range(6))
def test_golden_log_probabilities(golden, case):
    # Reference: published transition and its log-probability in float32, given their data prediction.
    figures = golden["sde_log_prob"]
    found = figures["cases"][case]
    x, x_next = torch.tensor(golden["solvers"]["z0"]), torch.tensor(figures["prev_sample"])
    sigmas, i = torch.tensor(figures["sigmas"]), found["index"]
    sigma, sigma_next = sigmas[i].expand(2), sigmas[i + 1].expand(2)
    v = (x - torch.tensor(found["x0_pred"])) / sigmas[i]
    p = sde_transition(x, v, sigma, sigma_next, found["eta"], sigma_max=float(sigmas[1]))
    torch.testing.assert_close(log_prob(x_next, p), torch.tensor(found["log_prob_mean"]), rtol=1e-5, atol=1e-5)


def test_log_probability_is_the_normal_distributions():
    # Reference: torch.distributions.Normal, averaged over a sample's dimensions.
    g = torch.Generator().manual_seed(0)
    mean, x = torch.randn(2, 3, 4, 5, 5, dtype=torch.float64, generator=g).unbind()
    std = torch.tensor([0.3, 1.0, 2.5], dtype=torch.float64)
    normal = torch.distributions.Normal(mean, std.view(-1, 1, 1, 1))
    torch.testing.assert_close(log_prob(x, Transition(mean, std)), normal.log_prob(x).mean((1, 2, 3)))


def test_without_noise_a_transition_is_eulers_step():
    # Reference: x + (s' - s) v.
    g = torch.Generator().manual_seed(0)
    x, v = torch.randn(2, 3, 4, 2, 2, dtype=torch.float64, generator=g).unbind()
    s, s_next = (torch.full((3,), value, dtype=torch.float64) for value in (0.8, 0.6))
    p = sde_transition(x, v, s, s_next, 0.0, sigma_max=0.98)
    torch.testing.assert_close(p.mean, x - 0.2 * v, rtol=0, atol=1e-14)
    assert p.std.tolist() == [0.0] * 3


def test_a_transition_keeps_the_marginals():
    # Reference: one data point x0 = 0 has v = noise = x / sigma and x_sigma ~ N(0, sigma^2). The SDE's step must take
    # that variance to (sigma + dt)^2 up to O(dt^2), whatever the noise level.
    s, dt = 0.5, -1e-4
    x = torch.tensor([[1.0]], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    for a in (0.3, 0.7, 1.0):
        p = sde_transition(x, x / s, one * s, one * (s + dt), a, sigma_max=0.98)
        variance = (p.mean.item() * s) ** 2 + p.std.item() ** 2
        assert variance == pytest.approx((s + dt) ** 2, abs=20 * dt**2)


def test_sigma_max_replaces_one_only():
    # Reference: diffusion a sqrt(sigma / (1 - sigma)) with 1 - sigma_max at sigma = 1; standard deviation times
    # sqrt(-dt).
    x = torch.zeros(2, 1, dtype=torch.float64)
    sigma = torch.tensor([1.0, 0.9], dtype=torch.float64)
    p = sde_transition(x, x, sigma, sigma - 0.1, 0.7, sigma_max=0.95)
    expected = [0.7 * math.sqrt(1 / 0.05 * 0.1), 0.7 * math.sqrt(0.9 / 0.1 * 0.1)]
    torch.testing.assert_close(p.std, torch.tensor(expected, dtype=torch.float64))


def normals(n, *shape, seed=0):
    return torch.randn(n, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).unbind()


def test_cps_is_its_definition():
    # Reference: arXiv:2509.05952's step written out a sample at a time, with eta = 0.8.
    x, v = normals(2, 3, 4, 2, 2)
    sigma, after = torch.tensor([1.0, 0.7, 0.3]).double(), torch.tensor([0.8, 0.5, 0.1]).double()
    p = cps_transition(x, v, sigma, after, 0.8)
    for row, (s, t) in enumerate(zip(sigma.tolist(), after.tolist(), strict=True)):
        data, noise = x[row] - s * v[row], x[row] + (1 - s) * v[row]
        kept = math.sqrt(t**2 - (t * math.sin(0.4 * math.pi)) ** 2)
        torch.testing.assert_close(p.mean[row], (1 - t) * data + kept * noise)
        assert p.std[row].item() == pytest.approx(t * math.sin(0.4 * math.pi))


@pytest.mark.parametrize("eta", [0.2, 0.8, 1.0])
def test_cps_keeps_the_coefficients_of_data_and_noise(eta):
    # Reference: x = (1 - s) x0 + s n with the true v = n - x0 goes to (1 - s') x0 plus noise of variance s'^2.
    x0, noise = normals(2, 2, 5)
    s, after = torch.tensor([1.0, 0.6]).double(), torch.tensor([0.7, 0.2]).double()
    p = cps_transition((1 - s)[:, None] * x0 + s[:, None] * noise, noise - x0, s, after, eta)
    share = (p.mean - (1 - after)[:, None] * x0) / noise  # of the old noise, the same everywhere
    torch.testing.assert_close(share**2 + p.std[:, None] ** 2, (after**2)[:, None].expand(2, 5))


def test_without_noise_cps_is_eulers_step():
    x, v = normals(2, 3, 4, 2, 2)
    s, after = (torch.full((3,), value, dtype=torch.float64) for value in (0.8, 0.6))
    p = cps_transition(x, v, s, after, 0.0)
    torch.testing.assert_close(p.mean, x - 0.2 * v, rtol=0, atol=1e-14)
    assert p.std.tolist() == [0.0] * 3


@pytest.mark.parametrize("kind", ["sde", "cps"])
def test_dynamics_take_that_step_in_float32_or_wider(kind):
    x, v = normals(2, 3, 4, 2, 2)
    s, after = torch.tensor([1.0, 0.7, 0.3]).double(), torch.tensor([0.8, 0.5, 0.1]).double()
    given = {"sde": sde_transition(x, v, s, after, 0.7, 0.8), "cps": cps_transition(x, v, s, after, 0.7)}[kind]
    found = Dynamics(kind, 0.7, 0.8).transition(x, v, s, after)
    assert torch.equal(found.mean, given.mean)
    assert torch.equal(found.std, given.std)
    half = Dynamics(kind, 0.7, 0.8).transition(x.bfloat16(), v.bfloat16(), s.float(), after.float())
    assert half.mean.dtype == half.std.dtype == torch.float32
    wide = Dynamics(kind, 0.7, 0.8).transition(x.bfloat16().double(), v.bfloat16().double(), s, after)
    torch.testing.assert_close(half.mean.double(), wide.mean, rtol=1e-5, atol=1e-6)


def test_divergence_is_that_of_two_normal_distributions():
    # Reference: torch.distributions.kl_divergence, averaged over a sample's dimensions.
    mean, other = normals(2, 3, 4, 5, 5)
    std = torch.tensor([0.3, 1.0, 2.5], dtype=torch.float64)
    ours, theirs = (torch.distributions.Normal(m, std.view(-1, 1, 1, 1)) for m in (mean, other))
    expected = torch.distributions.kl_divergence(ours, theirs).mean((1, 2, 3))
    torch.testing.assert_close(gaussian_kl(Transition(mean, std), other), expected)


def test_divergence_of_sde_steps_is_the_papers():
    # Reference: arXiv:2505.05470, section 4.2: dt / 2 (g (1 - s) / (2 s) + 1 / g)^2 |v - v_ref|^2, diffusion g.
    x, v, v_ref = normals(3, 1, 6)
    s, dt, a = 0.6, 0.1, 0.7
    sigma, after = torch.tensor([s]).double(), torch.tensor([s - dt]).double()
    ours, theirs = (sde_transition(x, w, sigma, after, a, 0.9) for w in (v, v_ref))
    g = a * math.sqrt(s / (1 - s))
    expected = dt / 2 * (g * (1 - s) / (2 * s) + 1 / g) ** 2 * (v - v_ref).square().mean(1)
    torch.testing.assert_close(gaussian_kl(ours, theirs.mean), expected)
