import math

import pytest
import torch

from sanarl.maths.sde import Transition, log_prob, sde_transition


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
