"""Reference: the transformers that diffusers builds."""

import subprocess
import sys

import pytest
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


def test_a_model_of_the_hub_is_as_large_as_any():
    known = widths("somebody/SANA", "image")
    assert len([name for name in known if name.endswith("attn1.to_q")]) == LARGEST["num_layers"]
    assert known["transformer_blocks.0.attn2.to_k"] == 2240


def test_no_torch_is_imported():
    code = "import sys, sanarl.models.layers; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
