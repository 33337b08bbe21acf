import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from sanarl.runtime.optim import Ema, OptimSettings, build, lr_factor, set_lr

SETTINGS = OptimSettings(
    name="AdamW",
    lr=0.1,
    betas=(0.9, 0.99),
    epsilon=1e-8,
    weight_decay=0.01,
    impl="foreach",
    warmup_steps=0,
    warmup_start_factor=0.0,
    decay_steps=0,
    decay_type="linear",
    min_lr_factor=0.0,
)


@pytest.mark.parametrize("name", ["AdamW", "Adam"])
@pytest.mark.parametrize("impl", ["fused", "foreach", "for-loop"])
def test_adam_written_out(name, impl):
    # Reference: two steps of the papers' update rules in float64.
    settings = replace(SETTINGS, name=name, impl=impl)
    x = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = build([x], settings)
    want, m, v = x.detach().clone(), 0, 0
    for t in (1, 2):
        x.grad = torch.tensor([0.5 * t, -3.0], dtype=torch.float64)
        g = x.grad + (0.01 * want if name == "Adam" else 0)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
        if name == "AdamW":
            want = want * (1 - 0.1 * 0.01)
        want = want - 0.1 * (m / (1 - 0.9**t)) / ((v / (1 - 0.99**t)).sqrt() + 1e-8)
        optimizer.step()
        torch.testing.assert_close(x.detach(), want, rtol=1e-7, atol=1e-9)


def factors(settings, total):
    return [lr_factor(i, total, settings) for i in range(total)]


def test_constant_rate():
    assert factors(SETTINGS, 5) == [1.0] * 5


def test_warm_up():
    # Reference: by hand: from 0.5, in equal steps, reaching 1 at update 3.
    assert factors(replace(SETTINGS, warmup_steps=3, warmup_start_factor=0.5), 5) == pytest.approx(
        [0.625, 0.75, 0.875, 1.0, 1.0]
    )


@pytest.mark.parametrize(
    ("kind", "curve"),
    [
        ("linear", lambda p: 1 - p),
        ("cosine", lambda p: (1 + math.cos(math.pi * p)) / 2),
        ("sqrt", lambda p: 1 - math.sqrt(p)),
    ],
)
def test_decay(kind, curve):
    # Reference: the curve over the last 4 of 10 updates, between 1 and the smallest factor.
    found = factors(replace(SETTINGS, decay_steps=4, decay_type=kind, min_lr_factor=0.2), 10)
    assert found == pytest.approx([1.0] * 7 + [0.2 + 0.8 * curve(p) for p in (0.25, 0.5, 0.75)])


def test_warm_up_and_decay_over_the_whole_run_meet():
    found = factors(replace(SETTINGS, warmup_steps=2, decay_steps=8), 10)
    assert found[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert all(a > b for a, b in itertools.pairwise(found[2:]))


def test_set_lr():
    optimizer = build([nn.Parameter(torch.ones(1))], SETTINGS)
    set_lr(optimizer, 0.3)
    assert [g["lr"] for g in optimizer.param_groups] == [0.3]


def test_moving_average_written_out():
    # Reference: average <- d average + (1 - d) value with d = min((1 + n) / (10 + n), decay), n counting its updates.
    x = nn.Parameter(torch.tensor([0.0], dtype=torch.float64))
    ema, want = Ema([x], decay=0.25, interval=2), 0.0
    for update in range(1, 9):
        with torch.no_grad():
            x += update
        ema.update(update)
        if update % 2 == 0:
            n = update // 2 - 1
            d = min((1 + n) / (10 + n), 0.25)
            want = d * want + (1 - d) * x.item()
        assert ema.values[0].item() == pytest.approx(want, rel=1e-12)
    assert x.item() == 36


def test_moving_average_is_kept_in_checkpoints():
    x = nn.Parameter(torch.tensor([1.0]))
    ema, other = Ema([x], 0.9, 1), Ema([nn.Parameter(torch.tensor([5.0]))], 0.9, 1)
    ema.update(1)
    other.load_state_dict(ema.state_dict())
    assert torch.equal(other.values[0], ema.values[0])
    assert other.count == 1
    with pytest.raises(ValueError, match="1 averaged tensors were saved, 2 are needed"):
        Ema([x, x], 0.9, 1).load_state_dict(ema.state_dict())
