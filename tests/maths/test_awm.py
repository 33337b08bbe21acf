"""Reference: by hand, the published code's branches written out, and the Gaussian whose bound it is."""

import pytest
import torch

from sanarl.maths.awm import matching_error, matching_log_prob


def test_error_by_hand():
    # noise - x0 is (2, 0) and (0, 0); off by (1, -3) and (0.5, 0.5): means of squares 5 and 0.25.
    x0, noise = torch.tensor([[-1.0, 1.0], [2.0, 2.0]]), torch.tensor([[1.0, 1.0], [2.0, 2.0]])
    v = torch.tensor([[3.0, -3.0], [0.5, 0.5]])
    assert matching_error(v, x0, noise).tolist() == [5.0, 0.25]
    assert matching_error(noise - x0, x0, noise).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("sigma", [0.1, 0.7, 1.0])
@pytest.mark.parametrize("error", [0.0, 1e-3, 0.8, 40.0])
def test_powers_are_the_published_weightings(error, sigma):
    # Reference: compute_log_prob_awm's "t", "huber" (half of the power 1/2) and "ghuber", as formulas.
    e, s = torch.tensor([[error], [sigma]], dtype=torch.float64)
    assert matching_log_prob(e, s, 1.0).item() == pytest.approx(-sigma * error, abs=1e-9)
    assert matching_log_prob(e, s, 0.5).item() / 2 == pytest.approx(-sigma * ((error + 1e-10) ** 0.5 - 1e-5))
    expected = -((error + 1e-10) ** 0.25 - 1e-10**0.25) * sigma / 0.25
    assert matching_log_prob(e, s, 0.25).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("power", [0.25, 0.5, 1.0])
def test_slope(power):
    # Reference: d/de = -sigma (e + 1e-10)^(power - 1), in closed form; finite at 0.
    e = torch.tensor([0.0, 0.01, 0.5, 1.0, 9.0], dtype=torch.float64, requires_grad=True)
    sigma = torch.linspace(0.2, 1, 5).double()
    matching_log_prob(e, sigma, power).sum().backward()
    torch.testing.assert_close(e.grad, -sigma * (e.detach() + 1e-10) ** (power - 1))
    assert e.grad.isfinite().all()


def test_differences_are_those_of_gaussian_log_densities():
    # Reference: x0 given x_t is normal around x_t - sigma v with variance sigma / 2 (a choice of the weight): its log
    # density, mean over D dimensions, is -(sigma v - sigma (noise - x0))^2 / sigma = -sigma e, up to a constant.
    g = torch.Generator().manual_seed(0)
    x0, noise, v, other = torch.randn(4, 3, 6, dtype=torch.float64, generator=g).unbind()
    sigma = torch.tensor([0.2, 0.5, 0.9]).double()
    x_t = (1 - sigma[:, None]) * x0 + sigma[:, None] * noise

    def density(velocity):
        mean = x_t - sigma[:, None] * velocity
        return torch.distributions.Normal(mean, (sigma[:, None] / 2).sqrt()).log_prob(x0).mean(1)

    def ours(velocity):
        return matching_log_prob(matching_error(velocity, x0, noise), sigma, 1.0)

    torch.testing.assert_close(ours(v) - ours(other), density(v) - density(other))
