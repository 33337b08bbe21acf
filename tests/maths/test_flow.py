import math

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.training_utils import compute_density_for_timestep_sampling
from scipy import stats

from sanarl.maths.flow import bcast, interpolate, per_sample, schedule, shifted, to_x0, training_sigma


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(3, 2), (3, 4, 2, 2), (3, 4, 5, 2, 2)])
def test_the_path_starts_at_data_ends_at_noise_and_has_the_velocity_as_slope(shape):
    # Reference: x_t = x0 + sigma * (noise - x0), written as a straight line: any chord has its slope.
    x0, noise, sigma = normal(*shape), normal(*shape).flip(0), torch.tensor([0.0, 0.25, 1.0], dtype=torch.float64)
    x_t = interpolate(x0, noise, sigma)
    assert torch.equal(x_t[0], x0[0])
    assert torch.equal(x_t[2], noise[2])
    slope = (interpolate(x0, noise, sigma + 0.5) - x_t) / 0.5
    torch.testing.assert_close(slope, noise - x0, rtol=0, atol=1e-14)
    torch.testing.assert_close(to_x0(x_t, noise - x0, sigma), x0, rtol=0, atol=1e-15)


def test_per_sample_is_a_mean_over_all_but_the_batch():
    x = normal(3, 4, 5, 2)
    torch.testing.assert_close(per_sample(x), torch.stack([row.mean() for row in x]))


@pytest.mark.parametrize("sigma", [torch.ones(2), torch.ones(1), torch.ones(3, 1), torch.tensor(1.0)])
def test_a_noise_level_that_is_not_one_a_sample_is_refused(sigma):
    with pytest.raises(ValueError, match="one value a sample"):
        bcast(sigma, torch.zeros(3, 4, 2, 2))


def test_shift_has_the_closed_form_and_an_inverse():
    # Reference: SD3, eq. 23, at hand-computed points: 3 * 0.5 / (1 + 2 * 0.5) = 0.75; the inverse shifts by 1/3.
    sigma = torch.linspace(0, 1, 11, dtype=torch.float64)
    assert shifted(torch.tensor(0.5, dtype=torch.float64), 3.0).item() == 0.75
    assert torch.equal(shifted(sigma, 1.0), sigma)
    assert shifted(sigma, 3.0)[[0, -1]].tolist() == [0.0, 1.0]
    torch.testing.assert_close(shifted(shifted(sigma, 3.0), 1 / 3.0), sigma)


@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize("num_steps", [1, 2, 4, 10, 40])
def test_schedule_is_the_scheduler_of_diffusers_given_even_sigmas(num_steps, shift):
    # Reference: FlowMatchEulerDiscreteScheduler with sigmas = 1, 1 - 1/n, ..., 1/n (float32 there).
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(sigmas=[1 - i / num_steps for i in range(num_steps)])
    ours = schedule(num_steps, shift)
    assert ours.dtype == torch.float64
    assert ours[0] == 1
    assert ours[-1] == 0
    torch.testing.assert_close(ours.float(), scheduler.sigmas, rtol=0, atol=2e-7)


@pytest.fixture(scope="module")
def draws():
    """Standard normal draws, stratified: the k-th is the (k + 1/2)/n quantile, so that a KS distance is exact."""
    n = 4000
    u = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    return torch.special.ndtri(u)


def ks(sigma, cdf):
    return stats.kstest(sigma.numpy(), cdf).statistic


@pytest.mark.parametrize("density", ["uniform", "none"])
def test_uniform_density(draws, density):
    # Reference: scipy's uniform distribution. A stratified sample of n lies within 1/(2n) of its distribution.
    assert ks(training_sigma(draws, density, 9.0, 9.0, 1.0), stats.uniform.cdf) < 1e-3


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.4, 1.0), (-1.0, 0.5)])
def test_logit_normal_density(draws, mean, std):
    # Reference: logit(sigma) is normal with that mean and deviation (scipy).
    sigma = training_sigma(draws, "logit_normal", mean, std, 1.0)
    assert ks(torch.logit(sigma), stats.norm(mean, std).cdf) < 1e-3


def test_shift_moves_the_density(draws):
    # Reference: shifting back (by 1/3) must give the unshifted density.
    sigma = training_sigma(draws, "logit_normal", 0.2, 0.7, 3.0)
    torch.testing.assert_close(shifted(sigma, 1 / 3), training_sigma(draws, "logit_normal", 0.2, 0.7, 1.0))


def test_mode_density_is_that_of_diffusers(monkeypatch):
    # Reference: diffusers' compute_density_for_timestep_sampling, given our uniform levels instead of its own draws.
    z = normal(1000)
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.special.ndtr(z))
    theirs = compute_density_for_timestep_sampling("mode", 1000, mode_scale=1.29)
    torch.testing.assert_close(training_sigma(z, "mode", 0, 1, 1.0), theirs, rtol=0, atol=1e-14)


def test_logit_normal_density_is_that_of_diffusers(monkeypatch):
    # Reference: the same function of diffusers, given our normal draws.
    z = normal(1000)
    monkeypatch.setattr(torch, "normal", lambda mean, std, **_: mean + std * z)
    theirs = compute_density_for_timestep_sampling("logit_normal", 1000, logit_mean=0.3, logit_std=1.5)
    torch.testing.assert_close(training_sigma(z, "logit_normal", 0.3, 1.5, 1.0), theirs, rtol=0, atol=1e-14)


@pytest.mark.parametrize("density", ["uniform", "logit_normal", "mode"])
def test_noise_levels_stay_inside_the_unit_interval(density):
    sigma = training_sigma(torch.tensor([-5.0, -1.0, 0.0, 1.0, 5.0]), density, 0.0, 1.0, 3.0)
    assert sigma.dtype == torch.float64
    assert ((sigma > 0) & (sigma < 1)).all()
    assert math.isclose(sigma[2].item(), 0.75, abs_tol=1e-12) or density == "mode"
