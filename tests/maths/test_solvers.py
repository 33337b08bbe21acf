import math

import pytest
import torch

from sanarl.maths.flow import schedule
from sanarl.maths.solvers import solve

SOLVERS = ["flow", "euler", "ddim", "dpm1", "dpm2"]


def golden_velocity(z, sigma):
    return 0.3 * z + 0.1 * torch.sin(3 * z) - 0.5 * sigma


@pytest.mark.parametrize("run", range(8))
def test_golden_solvers(golden, run):
    # Reference: final latents of the published solvers in float32, both schedules. Tolerance: their rounding.
    case = golden["solvers"]["runs"][run]
    z0 = torch.tensor(golden["solvers"]["z0"])
    final = solve(golden_velocity, z0, case["sigmas"], case["solver"])
    torch.testing.assert_close(final, torch.tensor(case["final"]), rtol=2e-6, atol=2e-6, msg=lambda m: f"{case}\n{m}")


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("num_steps", [1, 2, 7])
def test_a_straight_flow_is_solved_exactly(solver, num_steps):
    # Reference: x0 and noise themselves: with v = noise - x0 everywhere, every solver ends at x0.
    x0, noise = torch.randn(2, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind()
    final = solve(lambda *_: noise - x0, noise, schedule(num_steps, 3.0).tolist(), solver)
    torch.testing.assert_close(final, x0, rtol=0, atol=1e-14)


@pytest.mark.parametrize("solver", ["flow", "ddim", "dpm1"])
def test_first_order_solvers_are_euler_on_a_linear_equation(solver):
    # Reference: dx/dsigma = a x by Euler's method has the closed form x * prod(1 + a (s' - s)).
    sigmas, a = schedule(6, 2.0), 0.7
    x = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    factor = (1 + a * sigmas.diff()).prod()
    torch.testing.assert_close(
        solve(lambda z, _: a * z, x, sigmas.tolist(), solver), x * factor, rtol=1e-13, atol=1e-13
    )


@pytest.mark.parametrize(("solver", "order"), [("flow", 1), ("ddim", 1), ("dpm1", 1), ("dpm2", 2)])
def test_order_of_convergence(solver, order):
    # Reference: dx/dsigma = x has the solution x e^(s' - s); on levels even in log-SNR (where the 2M derivation has its
    # plain order) halving the steps divides the error by 2^order.
    def error(n):
        log_snr = torch.linspace(math.log(0.1 / 0.9), math.log(0.8 / 0.2), n + 1, dtype=torch.float64)
        sigmas = torch.sigmoid(-log_snr).tolist()
        final = solve(lambda z, _: z, torch.ones(1, 1, dtype=torch.float64), sigmas, solver)
        return abs(final.item() - math.exp(sigmas[-1] - sigmas[0]))

    assert error(80) / error(160) == pytest.approx(2**order, rel=0.02)


def test_second_order_is_better_than_first_on_the_golden_flow():
    x = torch.randn(1, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    exact = solve(golden_velocity, x, schedule(4000, 1.0).tolist(), "flow")
    errors = {s: (solve(golden_velocity, x, schedule(10, 1.0).tolist(), s) - exact).abs().max() for s in SOLVERS}
    assert errors["dpm2"] < 0.7 * errors["flow"]


def test_the_velocity_is_asked_at_every_level_but_the_last():
    asked = []
    solve(lambda z, s: (asked.append(s), torch.zeros_like(z))[1], torch.ones(1, 1), [1.0, 0.5, 0.25, 0.0], "dpm2")
    assert asked == [1.0, 0.5, 0.25]


@pytest.mark.parametrize("sigmas", [[0.5, 1.0], [1.0, 0.5, 0.5, 0.0]])
def test_levels_that_do_not_descend_are_refused(sigmas):
    with pytest.raises(ValueError, match="descend"):
        solve(lambda z, _: z, torch.ones(1), sigmas, "flow")
