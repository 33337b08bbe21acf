"""The fast forward against diffusers' own, and what a replica's layers hold."""

import pytest
import torch

from sanarl.models.adapter import LoraSettings
from sanarl.models.copies import live_layers
from sanarl.models.fast import FastTransformer
from sanarl.models.live import LiveLinear

FEED_FORWARD = ["ff.conv_inverted", "ff.conv_point"]


def outputs(transformer, fast, rows=3, dtype=torch.float32):
    """Stock and fast outputs on the same random input, prompts repeated and of different lengths."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 4, 4, 6, generator=rng)
    embeds = torch.randn(2, 11, 16, generator=rng)
    mask = torch.ones(2, 11, dtype=torch.int64)
    mask[1, 4:] = 0
    place = torch.arange(rows) % 2
    timestep = torch.tensor([900.0, 37.5, 500.0])[:rows]
    with torch.no_grad():
        stock = transformer(
            x.to(dtype),
            encoder_hidden_states=embeds[place].to(dtype),
            encoder_attention_mask=mask[place],
            timestep=timestep,
            return_dict=False,
        )[0]
        from sanarl.types import Cond

        captions = fast.captions(Cond(embeds, mask), place)
        return stock, fast(x, captions, timestep)


def distance(found, expected):
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("learned_sigma", [False, True])
def test_the_same_function_in_float32(make_sana, learned_sigma):
    transformer = make_sana(learned_sigma=learned_sigma).transformer
    stock, fast = outputs(transformer, FastTransformer(transformer, torch.float32))
    assert fast.shape == stock.shape
    assert distance(fast, stock) < 2e-6


def test_query_and_key_norms_patches_and_no_positions():
    """SANA-1.5's norms, patches of 2, and no positional embedding, as published models have it."""
    from diffusers import SanaTransformer2DModel

    torch.manual_seed(0)
    transformer = SanaTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=2,
        num_cross_attention_heads=4,
        cross_attention_head_dim=4,
        cross_attention_dim=16,
        caption_channels=16,
        patch_size=2,
        qk_norm="rms_norm_across_heads",
    ).eval()
    for name, p in transformer.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(p, 0.5, 1.5)
    stock, fast = outputs(transformer, FastTransformer(transformer, torch.float32))
    assert distance(fast, stock) < 2e-6


def test_bfloat16_agrees_with_bfloat16(make_sana):
    """Reference: float32. The fast form may be no worse than the stock one by more than the rounding of one layer."""
    exact, _ = outputs(make_sana().transformer, FastTransformer(make_sana().transformer, torch.float32))
    transformer = make_sana(dtype=torch.bfloat16).transformer
    stock, fast = outputs(transformer, FastTransformer(transformer, torch.bfloat16), dtype=torch.bfloat16)
    assert distance(fast, stock) < 0.01
    assert distance(fast, exact) < distance(stock, exact) + 0.004


@pytest.mark.parametrize("targets", [None, FEED_FORWARD])
def test_adapters_are_live(make_policy, lora, targets):
    """Reference: PEFT in the policy, with B far from zero, other ranks and scales for single layers."""
    settings = LoraSettings(
        r=3,
        alpha=6.0,
        target_modules=targets or lora.target_modules,
        r_pattern={} if targets else {"attn1.to_k": 5},
        alpha_pattern={} if targets else {"attn2.to_v": 1.0},
    )
    policy = make_policy(settings)
    fast = FastTransformer(policy.model.transformer, torch.float32)
    without, plain = outputs(policy.model.transformer, fast)
    assert distance(plain, without) < 2e-6  # B is zero
    values = [
        torch.randn(v.shape, generator=torch.Generator().manual_seed(i)) / 4 for i, v in enumerate(policy.masters)
    ]
    with policy.using(values):
        stale, _ = outputs(policy.model.transformer, fast)
        assert all(bool(layer.take_adapters()) for layer in live_layers(fast).values())
        stock, found = outputs(policy.model.transformer, fast)
    assert distance(stock, without) > 0.02
    assert torch.equal(stale, stock)
    assert distance(found, stock) < 2e-6


def test_ranks_are_padded_together(make_policy, lora):
    layer = FastTransformer(make_policy(lora).model.transformer, torch.float32).blocks[0].qkv
    assert layer.down.shape == (16, 16)  # three adapters of rank 4, padded from 12
    assert layer.up.shape == (48, 16)
    assert [part.ranks for part in layer.parts] == [slice(0, 4), slice(4, 8), slice(8, 12)]
    assert [part.rows for part in layer.parts] == [slice(0, 16), slice(16, 32), slice(32, 48)]


def test_a_layer_that_did_not_take_its_adapter_says_so(make_policy, lora):
    policy = make_policy(lora)
    layer = FastTransformer(policy.model.transformer, torch.float32).blocks[1].kv
    assert bool(layer.take_adapters())
    with policy.using([torch.full_like(v, float("nan")) for v in policy.masters]):
        assert not bool(layer.take_adapters())  # a value that equals nothing


def test_captions_are_computed_once_for_a_prompt(make_sana, monkeypatch):
    from sanarl.types import Cond

    fast = FastTransformer(make_sana().transformer, torch.float32)
    seen, forward = [], LiveLinear.forward
    monkeypatch.setattr(
        LiveLinear, "forward", lambda self, x: (seen.append((self.native, len(x))), forward(self, x))[1]
    )
    cond = Cond(torch.randn(2, 5, 16), torch.ones(2, 5, dtype=torch.int64))
    captions = fast.captions(cond, torch.tensor([0, 1, 1, 0]))
    assert seen == [("blocks.0.cross_attn.kv_linear", 2), ("blocks.1.cross_attn.kv_linear", 2)]
    assert captions.keys[0].shape == (4, 2, 8, 8)  # 5 tokens padded to 8
    assert torch.equal(captions.keys[1][0], captions.keys[1][3])


def test_every_block_gets_its_tokens_in_the_same_layout(make_sana):
    # A block is compiled once for all of them; another layout of the first one's tokens would be a second graph.
    fast = FastTransformer(make_sana().transformer, torch.float32)
    seen = []
    for block in fast.blocks:
        block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].stride()))
    outputs(make_sana().transformer, fast)
    assert len(seen) == len(fast.blocks) > 1
    assert len(set(seen)) == 1
