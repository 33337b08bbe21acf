import pytest
import torch
from torch import nn

from sanarl.errors import UserError
from sanarl.runtime.step import NotFinite, StepGuard, optimise
from sanarl.runtime.world import World
from sanarl.types import Term


class Line:
    """A trainable of two weights: the simplest thing that has masters and working weights."""

    def __init__(self):
        self.masters = [nn.Parameter(torch.tensor([1.0, -2.0]))]
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0]))
        self.moves = 0

    @torch.no_grad()
    def collect_gradients(self):
        if self.weight.grad is not None:
            grad = self.masters[0].grad
            self.masters[0].grad = self.weight.grad.clone() if grad is None else grad + self.weight.grad
            self.weight.grad = None

    @torch.no_grad()
    def publish(self):
        self.weight.copy_(self.masters[0])

    def learner_moved(self):
        self.moves += 1


def squares(line, targets, weights=None):
    """Terms of the mean squared distance to every target."""
    for number, target in enumerate(targets):
        loss = ((line.weight - target) ** 2).mean()
        yield Term(loss, 1 / len(targets) if weights is None else weights[number], {"target": torch.tensor(target)})


def take(line, terms, optimizer=None, guard=None, grad_clip=0.0, step=1):
    optimizer = optimizer or torch.optim.SGD(line.masters, lr=0.1)
    guard = guard or StepGuard(3)
    return optimise(terms, line, optimizer, grad_clip=grad_clip, share=1.0, world=World(), guard=guard, step=step)


def test_a_step_written_out():
    # Reference: targets 3 and 5: loss means over 2 weights; gradient w - 4 = (-3, -6); step 0.1.
    line = Line()
    metrics = take(line, squares(line, [3.0, 5.0]))
    assert line.masters[0].tolist() == pytest.approx([1.3, -1.4])
    assert torch.equal(line.weight, line.masters[0])
    assert metrics["loss"] == pytest.approx(((4 + 25) / 2 + (16 + 49) / 2) / 2)
    assert metrics["target"] == pytest.approx(4.0)
    assert metrics["grad_norm"] == pytest.approx(45**0.5)
    assert line.moves == 1


def test_unequal_weights():
    # Reference: 3/4 of the first and 1/4 of the second: gradient w - 3.5.
    line = Line()
    metrics = take(line, squares(line, [3.0, 5.0], [0.75, 0.25]))
    assert line.masters[0].tolist() == pytest.approx([1.25, -1.45])
    assert metrics["target"] == pytest.approx(3.5)


@pytest.mark.parametrize("clip", [0.5, 100.0, 0.0])
def test_the_gradient_is_clipped_once_to_its_norm(clip):
    # Reference: the gradient (-3, -6) of norm sqrt(45), shortened to the clip; the norm before it is logged.
    line = Line()
    metrics = take(line, squares(line, [3.0, 5.0]), grad_clip=clip)
    factor = min(1.0, clip / 45**0.5) if clip else 1.0
    assert line.masters[0].tolist() == pytest.approx([1 + 0.3 * factor, -2 + 0.6 * factor], abs=1e-6)
    assert metrics["grad_norm"] == pytest.approx(45**0.5)


def test_gradients_of_an_earlier_step_are_not_added():
    line = Line()
    take(line, squares(line, [3.0]))
    first = line.masters[0].grad.clone()
    take(line, squares(line, [3.0]))
    assert (line.masters[0].grad.abs() < first.abs()).all()


@pytest.mark.parametrize("weights", [[0.5, 0.4], [1.0, 1.0], [0.3, 0.3]])
def test_weights_that_do_not_sum_to_one_are_a_mistake_of_the_algorithm(weights):
    line = Line()
    with pytest.raises(AssertionError, match="weights of a step's terms sum to"):
        take(line, squares(line, [3.0, 5.0], weights))


def test_a_weight_without_gradient_gets_zeros():
    line = Line()
    line.masters.append(nn.Parameter(torch.ones(3)))
    take(line, squares(line, [3.0]), torch.optim.SGD(line.masters, lr=0.1))
    assert torch.equal(line.masters[1].grad, torch.zeros(3))


def test_every_term_is_backed_up_before_the_next_is_made():
    line, alive = Line(), []

    def terms():
        for _ in range(3):
            assert not alive, "the term before is still alive"
            loss = (line.weight**2).mean()
            alive.append(1)
            loss.register_hook(lambda g: (alive.pop(), g)[1])
            yield Term(loss, 1 / 3, {})

    take(line, terms())


def not_finite_loss(line, value, place=1):
    for number, term in enumerate(squares(line, [3.0, 5.0, 7.0])):
        yield Term(term.loss * value if number == place else term.loss, term.weight, term.metrics)


def not_finite_gradient(line):
    # sqrt has an infinite slope at 0: a finite loss with an infinite gradient.
    yield Term(torch.sqrt((line.weight - line.weight.detach()).abs()).sum(), 1.0, {})


@pytest.mark.parametrize("kind", ["nan", "inf", "gradient"])
def test_a_step_that_is_not_finite_leaves_everything_as_it_was(kind):
    # Reference: weights and Adam's state before the step, bit by bit.
    line, guard = Line(), StepGuard(3)
    optimizer = torch.optim.AdamW(line.masters, lr=0.1)
    take(line, squares(line, [3.0]), optimizer, guard)
    before = line.masters[0].detach().clone(), line.weight.detach().clone()
    state = {k: v.clone() for k, v in optimizer.state[line.masters[0]].items()}
    bad = not_finite_gradient(line) if kind == "gradient" else not_finite_loss(line, float(kind))
    assert take(line, bad, optimizer, guard) is None
    assert torch.equal(line.masters[0], before[0])
    assert torch.equal(line.weight, before[1])
    assert all(torch.equal(optimizer.state[line.masters[0]][k], v) for k, v in state.items())
    assert line.moves == 1
    assert (guard.in_a_row, guard.total) == (1, 1)
    assert guard.culprit == ("the gradient's norm" if kind == "gradient" else "the loss of term 1")
    metrics = take(line, squares(line, [3.0]), optimizer, guard)
    assert metrics is not None
    assert torch.isfinite(line.masters[0]).all()
    assert (guard.in_a_row, guard.total) == (0, 1)


def test_too_many_in_a_row_stop_the_run_and_name_step_and_term():
    line, guard = Line(), StepGuard(2)
    assert take(line, not_finite_loss(line, float("nan")), guard=guard, step=7) is None
    take(line, squares(line, [3.0]), guard=guard, step=8)
    assert take(line, not_finite_loss(line, float("nan")), guard=guard, step=9) is None
    with pytest.raises(NotFinite, match=r"step 10: the loss of term 2 is not finite, and 2 optimiser steps in a row"):
        take(line, not_finite_loss(line, float("inf"), place=2), guard=guard, step=10)
    assert issubclass(NotFinite, UserError)
    with pytest.raises(NotFinite, match=r"step 11: the gradient's norm is not finite"):
        take(line, not_finite_gradient(line), guard=guard, step=11)


def test_the_guard_is_kept_in_checkpoints():
    guard, other = StepGuard(5, in_a_row=2, total=9), StepGuard(5)
    other.load_state_dict(guard.state_dict())
    assert other == guard
