import json
import shutil

import pytest
import torch

from sanarl.errors import UserError
from sanarl.models.load import ModelSettings, load_model
from sanarl.models.tiny import random_video_pipeline

CPU = torch.device("cpu")


def settings(path, **changes):
    values = {
        "name_or_path": str(path),
        "revision": None,
        "transformer_dtype": torch.float32,
        "other_dtype": torch.float32,
        "size": (32, 32),
        "modality": "image",
        "frames": 1,
        "max_prompt_length": 12,
        "complex_human_instruction": False,
        "motion_score": None,
        "offload": True,
        "vae_tiles": "auto",
        "checkpointing": "off",
    }
    return ModelSettings(**(values | changes))


def test_a_local_folder_is_loaded_in_the_types_asked_for(pipeline_folder):
    model = load_model(settings(pipeline_folder, transformer_dtype=torch.bfloat16), CPU)
    assert {p.dtype for p in model.transformer.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in model.pipeline.vae.parameters()} == {torch.float32}
    assert {p.dtype for p in model.pipeline.text_encoder.parameters()} == {torch.float32}
    assert model.flow_shift == 3.0
    assert model.latent_shape == (4, 4, 4)


def test_a_loaded_folder_is_the_pipeline_that_was_saved(pipeline_folder, make_sana):
    # Reference: the pipeline in memory.
    loaded, made = load_model(settings(pipeline_folder), CPU), make_sana(size=(32, 32))
    x, sigma = torch.ones(1, 4, 4, 4), torch.tensor([0.5])
    with torch.no_grad():
        found = loaded.velocity(x, sigma, loaded.encode_prompts(["a red circle"]))
        expected = made.velocity(x, sigma, made.encode_prompts(["a red circle"]))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_gradient_checkpointing_changes_no_gradient(pipeline_folder):
    # Reference: the same model without it. Of two blocks, "selective" repeats the first.
    found = []
    for checkpointing, repeated in (("full", 4), ("selective", 3), ("off", 2)):
        model = load_model(settings(pipeline_folder, checkpointing=checkpointing), CPU)
        model.transformer.requires_grad_(True)
        cond = model.encode_prompts(["a red circle"])
        calls = []
        for block in model.transformer.transformer_blocks:
            block.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        model.velocity(torch.ones(1, 4, 4, 4), torch.tensor([0.5]), cond).square().sum().backward()
        assert len(calls) == repeated
        found.append([p.grad for p in model.transformer.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*found, strict=True))


def test_what_is_no_pipeline_is_refused(tmp_path):
    with pytest.raises(
        UserError, match=r"policy\.model_name_or_path: .* is no diffusers pipeline: .*model_index\.json"
    ):
        load_model(settings(tmp_path), CPU)
    (tmp_path / "model_index.json").write_text("{")
    with pytest.raises(UserError, match="is no diffusers pipeline"):
        load_model(settings(tmp_path), CPU)
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "KandinskyPipeline"}))
    with pytest.raises(UserError, match=r"is a KandinskyPipeline; families that can be trained: .*SanaPipeline"):
        load_model(settings(tmp_path), CPU)
    (tmp_path / "model_index.json").write_text("[]")
    with pytest.raises(UserError, match="is no diffusers pipeline"):
        load_model(settings(tmp_path), CPU)


def test_a_folder_with_missing_or_damaged_weights_is_refused(pipeline_folder, tmp_path):
    folder = shutil.copytree(pipeline_folder, tmp_path / "copy")
    weights = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    raw = weights.read_bytes()
    weights.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(UserError, match=r"policy\.model_name_or_path: \S+ could not be loaded"):
        load_model(settings(folder), CPU)
    weights.unlink()
    with pytest.raises(UserError, match="could not be loaded"):
        load_model(settings(folder), CPU)


@pytest.mark.parametrize("name", ["nowhere", "./nobody/nothing", "nobody/nothing/at-all", "nobody/nothing-at-all"])
def test_a_name_that_is_nowhere_names_the_embedded_models(name):
    with pytest.raises(UserError, match=rf"model_name_or_path: {name}.*accepted: a folder .* tiny-image, tiny-video"):
        load_model(settings(name), CPU)


def test_a_picture_model_is_no_video_model(pipeline_folder):
    with pytest.raises(UserError, match=r"is_video: true, but .* is a SanaPipeline, which makes image"):
        load_model(settings(pipeline_folder, modality="video", frames=5), CPU)


def test_a_video_pipeline_is_loaded_from_a_folder(tmp_path):
    random_video_pipeline().save_pretrained(tmp_path)
    model = load_model(settings(tmp_path, modality="video", frames=9), CPU)
    assert model.latent_shape == (4, 3, 4, 4)


@pytest.mark.parametrize("encoders", [(True, True, False), (False, True, True), (False, False, False)])
def test_sd3_is_loaded_without_some_of_its_text_encoders(random_family, tmp_path, encoders):
    # Reference: the pipeline that was saved.
    from sanarl.models.base import Use
    from sanarl.models.sd3 import StableDiffusion3

    pipeline = random_family("sd3", encoders=encoders)
    pipeline.save_pretrained(tmp_path)
    found = load_model(settings(tmp_path, size=(32, 32)), CPU).encode_prompts(["a red circle", ""])
    use = Use((32, 32), CPU, max_prompt_length=settings(tmp_path).max_prompt_length)
    wanted = StableDiffusion3(pipeline, use).encode_prompts(["a red circle", ""])
    torch.testing.assert_close(found.embeds, wanted.embeds)
    torch.testing.assert_close(found.pooled, wanted.pooled)
