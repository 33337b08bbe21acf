"""Reference: the transformers that diffusers builds."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from sanarl.models import tiny
from sanarl.models.layers import LARGEST, widths
from sanarl.models.tiny import random_pipeline, random_video_pipeline


def of(transformer):
    layers = {n: m for n, m in transformer.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    return {name: min(layer.weight.shape[:2]) for name, layer in layers.items()}


@pytest.mark.parametrize("name", list(tiny.NAMES))
def test_layers_of_the_embedded_models(name):
    assert widths(name, name.removeprefix("tiny-")) == of(tiny.load_pipeline(name).transformer)


@pytest.mark.parametrize("make", [random_pipeline, random_video_pipeline])
def test_layers_of_a_folder(make, tmp_path):
    pipeline = make()
    pipeline.transformer.save_pretrained(tmp_path / "transformer")
    assert widths(str(tmp_path), "video" if make is random_video_pipeline else "image") == of(pipeline.transformer)


def test_layers_of_sd3_and_flux(random_family, tmp_path):
    for family in ("sd3", "flux"):
        transformer = random_family(family).transformer
        transformer.save_pretrained(tmp_path / family / "transformer")
        assert widths(str(tmp_path / family), "image", family) == of(transformer)


def test_layers_of_sd3_and_flux_at_full_size():
    from diffusers import FluxTransformer2DModel, SD3Transformer2DModel

    from sanarl.models.joint_layers import FLUX_LARGEST, SD3_LARGEST

    with torch.device("meta"):
        sd3 = SD3Transformer2DModel(caption_projection_dim=38 * 64, qk_norm="rms_norm", **SD3_LARGEST)
        flux = FluxTransformer2DModel(**FLUX_LARGEST)
    assert widths("a/stable-diffusion-3.5", "image", "sd3") == of(sd3)
    assert widths("a/flux", "image", "flux") == of(flux)


def test_a_model_of_the_hub_is_as_large_as_any():
    known = widths("somebody/SANA", "image")
    assert len([name for name in known if name.endswith("attn1.to_q")]) == LARGEST["num_layers"]
    assert known["transformer_blocks.0.attn2.to_k"] == 2240


def test_no_torch_is_imported():
    code = "import sys, sanarl.models.layers; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
