import math

import pytest
import torch

from sanarl.maths.grpo import clipped_surrogate, normalised_log_ratio, step_weight
from sanarl.maths.sde import Transition, log_prob


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, 0),
        (1.0, -2.0, 2.0, 0),
        (1.3, 2.0, -2.4, 1),  # up to 1 + 0.2
        (1.3, -2.0, 2.6, 0),  # too likely and bad: never held back
        (0.6, 2.0, -1.2, 0),  # too unlikely and good: never held back
        (0.6, -2.0, 1.8, 1),  # down to 1 - 0.1
        (0.6, 0.0, 0.0, 0),
    ],
)
def test_surrogate_by_hand(ratio, advantage, loss, clipped):
    # Reference: -min(r A, clip(r, 0.9, 1.2) A), by hand; the gradient is -r A, and 0 where the clip holds.
    log_ratio = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    found = clipped_surrogate(log_ratio, torch.tensor([advantage]).double(), low=0.1, high=0.2)
    assert found.loss.item() == pytest.approx(loss)
    assert found.clipped.item() == clipped
    found.loss.sum().backward()
    assert log_ratio.grad.item() == pytest.approx(0.0 if clipped else -ratio * advantage)


def test_gradient_at_ratio_1_is_the_policy_gradient():
    # Reference: -A d log p / d mean = -A (x - mean) / (std^2 D), in closed form.
    g = torch.Generator().manual_seed(0)
    mean, x = torch.randn(2, 3, 4, 2, dtype=torch.float64, generator=g).unbind()
    std, advantages = torch.tensor([0.3, 1.0, 2.5]).double(), torch.tensor([1.5, -2.0, 0.0]).double()
    mean.requires_grad_()
    log_p = log_prob(x, Transition(mean, std))
    clipped_surrogate(log_p - log_p.detach(), advantages, 1e-4, 1e-4).loss.sum().backward()
    expected = -advantages.view(-1, 1, 1) * (x - mean.detach()) / std.view(-1, 1, 1) ** 2 / 8
    torch.testing.assert_close(mean.grad, expected)


def steps():
    """Steps of an old and a new policy from three samples, with different deviations."""
    g = torch.Generator().manual_seed(1)
    old, moved, noise = torch.randn(3, 3, 4, 2, dtype=torch.float64, generator=g).unbind()
    std = torch.tensor([0.05, 0.4, 1.2]).double()
    new = old + 0.1 * moved
    return old, new, std, old + std.view(-1, 1, 1) * noise, noise


def test_ratio_norm_is_its_equation():
    # Reference: arXiv:2510.22319, eq. 8, from log-probabilities: std (log r + |mean - old|^2 / (2 std^2)).
    old, new, std, x_next, _ = steps()
    p = Transition(new, std)
    plain = log_prob(x_next, p) - log_prob(x_next, Transition(old, std))
    expected = std * (plain + (new - old).square().mean((1, 2)) / (2 * std**2))
    torch.testing.assert_close(normalised_log_ratio(x_next, p, old), expected)


def test_ratio_norm_is_centred_and_equally_wide_at_every_deviation():
    # Reference: the paper's remark below eq. 8: what is left is (mean - old) times the step's unit noise.
    old, new, std, x_next, noise = steps()
    expected = ((new - old) * noise).mean((1, 2))
    torch.testing.assert_close(normalised_log_ratio(x_next, Transition(new, std), old), expected)


def test_steps_weigh_by_their_length():
    # Reference: arXiv:2510.22319, eq. 12 with a constant beta: 1 / dt.
    found = step_weight(torch.tensor([1.0, 0.5]), torch.tensor([0.75, 0.25]))
    assert found.tolist() == [4.0, 4.0]
    assert step_weight(torch.tensor([1.0]), torch.tensor([0.9])).item() == pytest.approx(10)
