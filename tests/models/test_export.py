"""Every export is loaded again by diffusers and must predict what the trainer predicted."""

import os
import resource
from contextlib import contextmanager

import pytest
import torch
from diffusers import DiffusionPipeline
from safetensors.torch import load_file, save_file

from sanarl.errors import UserError
from sanarl.models.export import export
from sanarl.models.tiny import random_pipeline, random_video_pipeline

pytestmark = pytest.mark.parametrize("frames", [1, 5], ids=["image", "video"], indirect=True, scope="module")
FILE = "pytorch_lora_weights.safetensors"
PROMPTS = ["a red circle", "two blue squares"]


@torch.no_grad()
def moved(policy, size=0.05):
    g = torch.Generator().manual_seed(2)
    for master in policy.masters:
        master += size * torch.randn(master.shape, generator=g)
    policy.publish()
    return policy


@torch.no_grad()
def prediction(transformer, policy):
    """What a transformer of diffusers predicts, called as its pipeline calls it."""
    x = torch.randn(2, *policy.model.latent_shape, generator=torch.Generator().manual_seed(0))
    cond = policy.model.encode_prompts(PROMPTS)
    return transformer(
        x,
        encoder_hidden_states=cond.embeds,
        encoder_attention_mask=cond.mask,
        timestep=torch.tensor([300.0, 800.0]),
        return_dict=False,
    )[0]


def untouched(policy):
    """A fresh pipeline like the trainer's."""
    made = random_pipeline() if len(policy.model.latent_shape) == 3 else random_video_pipeline()
    assert type(made) is type(policy.model.pipeline)
    return made


def with_adapter(policy, folder):
    """A fresh pipeline with the exported adapter, as a person loads it."""
    pipeline = untouched(policy)
    pipeline.load_lora_weights(folder)
    return pipeline.transformer


def reloaded_error(policy, folder):
    """How far the reloaded adapter's prediction is from the trainer's."""
    found, wanted = with_adapter(policy, folder), policy.model.transformer
    return (prediction(found, policy) - prediction(wanted, policy)).abs().max().item()


def test_an_exported_adapter_predicts_what_the_trainer_did(make_policy, tmp_path):
    # Reference: the trainer's transformer; alpha is 8 at rank 4, so that a lost alpha would halve the adapter.
    policy = moved(make_policy())
    export(policy, policy.masters, tmp_path / "step_1", "# a card")
    assert reloaded_error(policy, tmp_path / "step_1") < 1e-6
    assert (tmp_path / "step_1" / "README.md").read_text(encoding="utf-8") == "# a card"
    base = prediction(untouched(policy).transformer, policy)
    assert (base - prediction(policy.model.transformer, policy)).abs().max() > 1e-2


def test_defect_lost_alpha_is_caught(make_policy, tmp_path):
    policy = moved(make_policy())
    export(policy, policy.masters, tmp_path, "# a card")
    save_file(load_file(tmp_path / FILE), tmp_path / FILE)  # the same weights without their metadata
    assert reloaded_error(policy, tmp_path) > 1e-3


def test_the_values_that_are_given_are_exported(make_policy, tmp_path):
    # Reference: an average kept beside the learner; the learner's own values stay in the transformer.
    policy = moved(make_policy())
    average = [0.5 * m.detach() for m in policy.masters]
    export(policy, average, tmp_path, "# a card")
    found = with_adapter(policy, tmp_path)
    learner = prediction(policy.model.transformer, policy)
    with policy.using(average):
        torch.testing.assert_close(prediction(found, policy), prediction(policy.model.transformer, policy))
    assert torch.equal(prediction(policy.model.transformer, policy), learner)
    assert (prediction(found, policy) - learner).abs().max() > 1e-3


def test_an_adapter_of_a_half_precision_model_is_exported_from_its_masters(make_policy, tmp_path):
    # Reference: the float32 masters, bit by bit.
    policy = moved(make_policy(dtype=torch.bfloat16), size=1e-3)
    export(policy, policy.masters, tmp_path, "# a card")
    saved = load_file(tmp_path / FILE)
    for name, master in zip(policy.names, policy.masters, strict=True):
        assert torch.equal(saved["transformer." + name.replace(".default.", ".")], master.detach())


@pytest.mark.parametrize("kept_sets", [True, False])
def test_an_exported_pipeline_predicts_what_the_trainer_did(make_policy, tmp_path, kept_sets, frames):
    # Reference: the trainer's transformer.
    policy = moved(make_policy(None, kept_sets=kept_sets, flow_shift=3.0))
    export(policy, policy.masters, tmp_path / "step_1", "# a card")
    found = DiffusionPipeline.from_pretrained(tmp_path / "step_1")
    assert type(found) is type(policy.model.pipeline)
    assert torch.equal(prediction(found.transformer, policy), prediction(policy.model.transformer, policy))
    assert found.scheduler.config.shift == 3.0
    found.set_progress_bar_config(disable=True)
    asked = {"height": 32, "width": 32, "num_inference_steps": 1, "use_resolution_binning": False}
    if frames > 1:
        asked |= {"frames": frames, "output_type": "np"}
    shown = found(PROMPTS[0], **asked, return_dict=False)[0]
    assert (shown[0].size if frames == 1 else shown.shape) == ((32, 32) if frames == 1 else (1, frames, 32, 32, 3))


@contextmanager
def small_files():
    """Let the operating system refuse files beyond 4 KiB, as a full disk would; also pytest's, so only for a moment."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("settings", ["adapter", "whole"])
def test_an_export_that_fails_leaves_the_earlier_one(make_policy, lora, tmp_path, settings):
    policy = moved(make_policy(lora if settings == "adapter" else None))
    folder = tmp_path / "step_1"
    export(policy, policy.masters, folder, "# a card")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with small_files(), pytest.raises(UserError, match=r"step_1: the export could not be written"):
        export(moved(policy), policy.masters, folder, "# a card")
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    assert os.listdir(tmp_path) == ["step_1"]
    with small_files(), pytest.raises(UserError):
        export(policy, policy.masters, tmp_path / "step_2", "# a card")
    assert os.listdir(tmp_path) == ["step_1"]
