"""Operations of a forward pass and of whole optimiser steps, against formulas by hand and torch's own counter."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from sanarl.algorithms import sft
from sanarl.models.adapter import LoraSettings
from sanarl.models.flops import ForwardFlops
from sanarl.runtime.meter import Meter, Peak
from sanarl.runtime.world import World

HEIGHT, WIDTH, TOKENS = 8, 6, 12


def by_hand(config, tokens):
    """SANA (arXiv:2410.10629, section 3), 2 operations a multiplication and addition, from its sizes alone."""
    n = HEIGHT * WIDTH // config.patch_size**2
    heads, size = config.num_attention_heads, config.attention_head_dim
    d, inner = heads * size, config.cross_attention_head_dim * config.num_cross_attention_heads
    hidden, channels = int(config.mlp_ratio * d), config.caption_channels
    patches = 2 * n * d * config.patch_size**2 * (config.in_channels + config.out_channels)
    time = 2 * (256 * d + d * d + 6 * d * d)
    text = 2 * tokens * (channels * d + d * d)
    # Linear attention: values with a row of ones times keys, (size + 1) x n x size, then times queries, for every head.
    attention = heads * 2 * 2 * (size + 1) * n * size + 2 * 2 * n * tokens * inner
    own = 2 * n * 4 * d * d
    cross = 2 * 2 * n * d * inner + 2 * 2 * tokens * d * inner
    mix = 2 * n * (2 * hidden * d + 9 * 2 * hidden + hidden * d)  # GLUMBConv: 1 x 1, 3 x 3 of each channel, 1 x 1
    weights = patches + time + text + config.num_layers * (own + cross + mix)
    return weights, config.num_layers * attention


@pytest.mark.parametrize("tokens", [1, TOKENS])
def test_a_forward_pass_by_hand(make_sana, tokens):
    model = make_sana()
    count = ForwardFlops(model)
    assert count((4, HEIGHT, WIDTH), tokens) == by_hand(model.transformer.config, tokens)
    assert next(model.transformer.parameters()).device.type == "cpu"


def test_adapters_do_not_count(make_policy):
    with_adapter, without = (make_policy(settings).model for settings in (LoraSettings(4, 8.0, ["to_q"]), None))
    assert ForwardFlops(with_adapter)((4, 8, 8), 3) == ForwardFlops(without)((4, 8, 8), 3)


@pytest.mark.parametrize("adapter", [False, True])
def test_a_step_of_training_against_the_counter(adapter):
    # Reference: FlopCounterMode over forward and backward of the embedded model. It leaves out what layers
    # would hand to inputs that need no gradient (text, time), and counts an adapter of rank 1: both are a few per cent.
    # Of a grouped convolution it takes the gradient for that of a full one, so of convolutions the forward pass counts
    # once or twice more instead.
    from sanarl.models.adapter import add_adapter
    from sanarl.models.base import Use
    from sanarl.models.policy import Policy
    from sanarl.models.sana import Sana
    from sanarl.models.tiny import load_pipeline

    model = Sana(load_pipeline("tiny-image"), Use(size=(64, 64), device=torch.device("cpu"), max_prompt_length=12))
    if adapter:
        targets = [f"attn1.{name}" for name in ("to_q", "to_v", "to_out.0")]
        start = add_adapter(model.transformer, LoraSettings(1, 1.0, targets), seed=0)
    else:
        model.transformer.requires_grad_(True)
        start = {name: p.detach() for name, p in model.transformer.named_parameters()}
    policy = Policy(model, start, torch.float32, kept_sets=False)
    count = ForwardFlops(model)
    count(model.latent_shape, 12)  # now, so that the counter below does not see it
    meter = Meter(count, not adapter, Peak(1.0, "this test"))
    policy.on_pass = meter.saw
    settings = sft.Settings(mini_batch=2, density="logit_normal", logit_mean=0.0, logit_std=1.0, flow_shift=1.0)
    cond = model.encode_prompts(["a red circle"] * 4)
    model.encode_prompts = lambda _: cond  # the text encoder is not part of what is counted
    latents = list(torch.randn(4, *model.latent_shape))
    terms = sft.terms(policy, latents, ["a red circle"] * 4, torch.arange(4), settings, (0, 1))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        for term in terms:
            term.loss.backward()
    found = meter.take(2.0, World())
    by_op = {str(op): n for op, n in counter.get_flop_counts()["Global"].items()}
    backward = by_op["aten.convolution"] * (1 if adapter else 2)
    expected = counter.get_total_flops() - by_op["aten.convolution_backward"] + backward
    assert found["perf/tflops"] * 2.0 * 1e12 == pytest.approx(expected, rel=0.06)
    assert found["perf/mfu"] == found["perf/tflops"]
    assert meter.take(1.0, World()) == {"perf/tflops": 0.0, "perf/mfu": 0.0}
    assert meter.take(None, World()) == {}
