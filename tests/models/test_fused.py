"""Shared work of a transformer's layers. Reference: PEFT's and diffusers' own layers, in float32."""

import copy

import pytest
import torch

from sanarl.models import tiny
from sanarl.models.adapter import LoraSettings, add_adapter
from sanarl.models.base import Use
from sanarl.models.fused import FusedAttention, PaddedLora, caption_mask, fuse
from sanarl.models.sana import Sana
from sanarl.types import Cond

TARGETS = [f"attn{i}.{name}" for i in (1, 2) for name in ("to_q", "to_k", "to_v", "to_out.0")]


def two_models(video, targets=TARGETS):
    """The same model twice with the same adapter, whose second factor is not zero; the second one shares work."""
    pipeline = tiny.random_video_pipeline() if video else tiny.random_pipeline()
    models = []
    for each in (pipeline, copy.deepcopy(pipeline)):
        model = Sana(each, Use((32, 32), torch.device("cpu"), frames=5 if video else 1, max_prompt_length=12))
        settings = LoraSettings(r=3, alpha=6.0, target_modules=targets, r_pattern={"attn1.to_q": 5})
        add_adapter(model.transformer, settings, seed=0)
        draw = torch.Generator().manual_seed(1)
        for name, p in model.transformer.named_parameters():
            if ".lora_B." in name:
                p.data = 0.1 * torch.randn(p.shape, generator=draw)
        models.append(model)
    fuse(models[1].transformer)
    return models


def passed(model, prompts):
    """Velocity and gradients of a loss by parameter."""
    draw = torch.Generator().manual_seed(2)
    n = len(prompts)
    x, sigma = torch.randn(n, *model.latent_shape, generator=draw), torch.rand(n, generator=draw)
    model.transformer.zero_grad()
    v = model.velocity(x, sigma, model.encode_prompts(prompts))
    (v * torch.randn(v.shape, generator=draw)).sum().backward()
    return v.detach(), {n: p.grad.clone() for n, p in model.transformer.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("video", [False, True], ids=["image", "video"])
@pytest.mark.parametrize("prompts", [["a red circle"] * 3, ["a red circle", "two", "a red circle"]], ids=["one", "two"])
def test_outputs_and_gradients_are_those_of_peft(video, prompts):
    plain, fused = two_models(video)
    expected, found = passed(plain, prompts), passed(fused, prompts)
    assert expected[1].keys() == found[1].keys()
    assert all(".lora_" in name for name in found[1])
    assert min(g.abs().max() for g in expected[1].values()) > 1e-6
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_layers_without_an_adapter_beside_those_with_one():
    plain, fused = two_models(False, ["attn1.to_q", "attn1.to_v", "attn2.to_k"])
    torch.testing.assert_close(passed(fused, ["a", "b"]), passed(plain, ["a", "b"]), rtol=1e-4, atol=1e-5)


def test_parameters_keep_their_names_and_ranks():
    plain, fused = two_models(False)
    shapes = [{n: p.shape for n, p in m.transformer.named_parameters()} for m in (plain, fused)]
    assert shapes[0] == shapes[1]
    layers = [m for m in fused.transformer.modules() if isinstance(m, PaddedLora)]
    assert len(layers) == 8 * len(fused.transformer.transformer_blocks)
    assert {layer.lowering().shape[0] for layer in layers} == {16}


def test_captions_of_one_prompt_are_computed_for_one_row():
    _, fused = two_models(False)
    seen = []
    for block in fused.transformer.transformer_blocks:
        block.attn2.to_v.base_layer.register_forward_hook(lambda _, given, __: seen.append(len(given[0])))
    blocks = len(fused.transformer.transformer_blocks)
    for prompts, rows in ((["a"] * 4, 1), (["a", "b", "a", "a"], 4), (["a"], 1)):
        seen.clear()
        passed(fused, prompts)
        assert seen == [rows] * blocks


def test_the_mask_is_shared_only_where_that_is_known():
    plain, fused = two_models(False)
    cond = fused.encode_prompts(["a"] * 3)
    assert isinstance(fused.transformer.transformer_blocks[0].attn2.processor, FusedAttention)
    assert caption_mask(fused.transformer, cond, torch.float32).shape == (1, 1, cond.mask.shape[1])
    assert caption_mask(plain.transformer, cond, torch.float32) is cond.mask
    unknown = Cond(cond.embeds, cond.mask)
    assert caption_mask(fused.transformer, unknown, torch.float32) is cond.mask
    rows = fused.encode_prompts(["a", "b", "b"])[torch.tensor([1, 2])]
    assert rows.texts == ["b", "b"]


def test_checkpointed_blocks_share_work_as_well():
    plain, fused = two_models(False)
    expected = passed(plain, ["a"] * 2)
    fused.transformer.enable_gradient_checkpointing()
    fused.transformer.train()
    torch.testing.assert_close(passed(fused, ["a"] * 2), expected, rtol=1e-4, atol=1e-5)
