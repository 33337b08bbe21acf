"""Encoding the next step's items while one trains. Reference: everything in its turn."""

import threading

import pytest
import torch

from sanarl.errors import UserError
from sanarl.training.ahead import Ahead, Encoded
from sanarl.types import Cond

CPU = torch.device("cpu")


def test_a_run_that_works_ahead_is_the_same(train, baseline, same, monkeypatch):
    # Bit by bit, with an evaluation between steps, which needs the models too.
    threads = set()
    inner = Encoded.__init__

    def seen(self, *arguments):
        threads.add(threading.current_thread().name.partition("_")[0])
        inner(self, *arguments)

    monkeypatch.setattr(Encoded, "__init__", seen)
    same(train("sft-lora", "train.encode_ahead=true"), baseline("sft-lora"))
    assert threads == {"MainThread", "encode"}


def test_an_item_that_cannot_be_read_is_told_of_by_its_own_step():
    def take(step):
        if step == 2:
            raise UserError("step 2 has a damaged picture")
        return [{"step": step}]

    def encode(step, items):
        return Encoded([torch.tensor(float(step))], Cond(torch.zeros(len(items), 1, 1), torch.ones(len(items), 1)))

    with Ahead(take, encode, CPU, works=True) as ahead:
        assert ahead.items(1) == ([{"step": 1}], None)
        ahead.begin(2)
        ahead.settle()
        with pytest.raises(UserError, match="step 2 has a damaged picture"):
            ahead.items(2)
        ahead.begin(3)
        items, encoded = ahead.items(3)
    assert (items, encoded.latents[0].item()) == ([{"step": 3}], 3.0)
