"""Memory found on shapes alone. Reference: by hand, and what real tensors of the tiny model save for their backward."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sanarl.models.checkpointing import kept, set_checkpointing
from sanarl.models.footprint import num_bytes, saved_by, shadow, used
from sanarl.models.tiny import random_pipeline

KIB = 1024


class Chain(nn.Module):
    """Three products with tables of 16 kiB, each kept for the backward pass by the sine after it."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).sin()
        return x


def run(module, rows, **options):
    """Of (rows, 64) numbers forward, and back where gradients are asked for."""

    def prepare():
        x = torch.zeros(rows, 64)
        return lambda: module(x).sum().backward() if options else module(x)

    return used([module], prepare, **options)


def test_a_chain_by_hand():
    chain = shadow(Chain())
    assert num_bytes(chain) == 3 * 16 * KIB
    # 64 rows are 16 kiB. Without gradients an input, a product and a sine are there at once, of which x is not counted.
    assert run(chain, 64).peak == 3 * 16 * KIB
    assert run(chain, 64).kept == 16 * KIB
    # With gradients three products and two sines stay, the last sine lasts while its sum is taken, and both scalars do.
    # Going back, gradients of the sine, of the product and of the table come on top of what is still saved.
    found = run(chain, 64, gradients=True)
    assert 6 * 16 * KIB < found.peak <= 9 * 16 * KIB
    assert 3 * 16 * KIB <= found.kept <= 3 * 16 * KIB + 2 * 512  # gradients of the three tables
    assert [p.grad for p in chain.parameters()] == [None] * 3


def test_no_storage_is_made_and_the_module_stays_as_it_is():
    module = Chain()
    before = [p.detach().clone() for p in module.parameters()]
    made = shadow(module)
    # A terabyte of activations.
    assert run(made, 2**32).peak > 2**40
    assert {p.device.type for p in made.parameters()} == {"meta"}
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def test_tables_beside_the_buffers_come_along_without_their_device():
    class Tabled(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.ones(64, device="meta")

        def forward(self, x):
            return x + self.table

    assert run(shadow(Tabled()), 64).peak == 16 * KIB


def test_what_a_convolution_takes_for_its_layout():
    layer = shadow(nn.Conv2d(4, 8, 3, padding=1, bias=False))

    def prepare(rows, edge):
        x = torch.zeros(rows, 4, edge, edge)
        return lambda: layer(x)

    size = 4 * 64 * 64  # bytes of a channel
    assert used([layer], lambda: prepare(1, 64)).peak == 8 * size + (4 + 8) * size
    # 2**32 numbers in the output of 2 rows: cuDNN takes a row at a time.
    wide = 4 * 2**14 * 2**14
    assert used([layer], lambda: prepare(2, 2**14)).peak == 2 * 8 * wide + (4 + 8) * wide


def test_attention_keeps_no_scores():
    before = F.scaled_dot_product_attention

    def prepare():
        q = torch.zeros(1, 2, 4096, 32)
        return lambda: F.scaled_dot_product_attention(q, q, q)

    assert used([], prepare).peak < 2 * 4096 * 32 * 4 * 2  # scores would be 128 MiB
    assert F.scaled_dot_product_attention is before


@pytest.mark.parametrize("trained", [False, True])
def test_activations_are_those_that_the_tiny_model_saves(trained):
    # Reference: torch's own hooks on the real model's real tensors, each storage once.
    transformer = random_pipeline().transformer.requires_grad_(trained)
    transformer.transformer_blocks[0].requires_grad_(True)
    inputs = {
        "hidden_states": torch.randn(4, 4, 8, 8),
        "encoder_hidden_states": torch.randn(4, 12, transformer.config.caption_channels),
        "encoder_attention_mask": torch.ones(4, 12),
        "timestep": torch.full((4,), 500.0),
    }
    weights = {t.untyped_storage().data_ptr() for t in (*transformer.parameters(), *transformer.buffers())}
    given = {t.untyped_storage().data_ptr() for t in inputs.values()}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage  # held, so that no place is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = transformer(**inputs)[0]
    expected = sum(s.nbytes() for place, s in saved.items() if place not in weights | given)
    ghost = shadow(transformer)

    def prepare():
        given = {name: torch.zeros(value.shape) for name, value in inputs.items()}
        return lambda: ghost(**given)[0]

    found = used([ghost], prepare, gradients=True).kept
    assert found == pytest.approx(expected + out.nbytes, rel=0.1)


def test_blocks_that_keep_their_activations():
    transformer = random_pipeline().transformer
    assert [kept(transformer, how) for how in ("off", "selective", "full")] == [2, 1, 0]
    ghost = shadow(transformer).requires_grad_(True)

    def prepare():
        x, text = torch.zeros(2, 4, 8, 8), torch.zeros(2, 12, transformer.config.caption_channels)
        mask = torch.ones(2, 12)
        return lambda: ghost(x, encoder_hidden_states=text, encoder_attention_mask=mask, timestep=torch.ones(2))[0]

    found = {}
    for how in ("off", "selective", "full"):
        set_checkpointing(ghost, how)
        found[how] = used([ghost], prepare, gradients=True).kept
    assert found["full"] < found["selective"] < found["off"]
    saved = (found["off"] - found["full"]) / 2  # equal blocks
    assert found["off"] - found["selective"] == pytest.approx(saved, rel=0.02)


def test_what_compiled_blocks_save():
    # Reference: by hand; of (x * x).sin().cos(), eager code saves x, x * x and its sine, compiled code can do with x.
    class Block(nn.Module):
        def forward(self, x):
            return (x * x).sin().cos()

    block = Block()
    x = torch.zeros(1024, device="meta", requires_grad=True)
    assert saved_by([block], lambda: block(x)) == 3 * 4096
    assert saved_by([block], lambda: block(x), "aot_eager_decomp_partition") == 4096
    torch._dynamo.reset()
    assert "forward" not in vars(block)
