"""The recipe of tiny-image still runs, a few steps of each stage, then the export; what it makes is not judged here."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from sanarl.models.tiny import random_pipeline
from sanarl.shapes.captions import MIX

PATH = Path(__file__).parents[2] / "recipes" / "tiny_image.py"


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("recipe_tiny_image", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.slow
def test_autoencoder_stage(recipe, tmp_path):
    recipe.train_autoencoder(tmp_path, steps=2, num_pictures=64)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["psnr_db"] > 0
    vae = recipe.AutoencoderDC.from_pretrained(tmp_path)
    assert vae.config.scaling_factor != 1.0


@pytest.mark.slow
def test_flow_stage_trains_both_parts_and_export_keeps_them(recipe, tmp_path):
    pipeline, before = random_pipeline(0), random_pipeline(0)
    tuning = recipe.Tuning(steps=3, lr=1e-2, text_lr=1e-2, wrong_captions=0.5, seed=0, batch=4, num_pictures=16)
    assert not recipe.done(tmp_path / "base")
    recipe.train_flow(pipeline, tuning, tmp_path / "base")
    assert recipe.done(tmp_path / "base")
    for part in ("transformer", "text_encoder"):
        moved = [
            not torch.equal(p, q)
            for p, q in zip(getattr(pipeline, part).parameters(), getattr(before, part).parameters(), strict=True)
        ]
        assert any(moved), part
    assert all(torch.equal(p, q) for p, q in zip(pipeline.vae.parameters(), before.vae.parameters(), strict=True))
    recipe.export(tmp_path / "base", tmp_path / "out")
    exported = recipe.load(tmp_path / "out")
    for p, q in zip(exported.transformer.parameters(), pipeline.transformer.parameters(), strict=True):
        assert torch.equal(p, q.half().float())
    assert str(tmp_path) not in "".join(path.read_text() for path in (tmp_path / "out").rglob("*.json"))


def test_wrong_captions_are_the_stated_share(recipe):
    pipeline = random_pipeline(0)
    told = {}
    for share in (0.0, 0.4):
        tuning = recipe.Tuning(steps=1, lr=0.0, text_lr=0.0, wrong_captions=share, seed=0, num_pictures=400)
        latents, tokens = recipe.prepare(pipeline, tuning)
        assert latents.shape == (400, 4, 8, 8)
        assert tokens["attention_mask"].sum(1)[-1] == 1  # the empty caption: <bos> alone
        told[share] = tokens["input_ids"][:-1]
    changed = (told[0.0] != told[0.4]).any(1).float().mean().item()
    assert changed == pytest.approx(0.4, abs=0.1)  # four standard errors of a share of 0.4 in 400


def test_learning_rate_schedule(recipe):
    tuning = recipe.Tuning(steps=1000, lr=1.0, text_lr=1.0, wrong_captions=0.0, seed=0)
    assert recipe.rate(0, tuning) == pytest.approx(0.01)
    assert recipe.rate(500, tuning) == pytest.approx(0.515)  # half of 0.97, plus 0.03
    assert recipe.rate(1000, tuning) == pytest.approx(0.03)


def test_scores_average_each_kind(recipe):
    prompts = recipe.balanced("dev", 20)
    pictures = recipe.to_uint8(recipe.draw(prompts, recipe.random.Random(0)))
    assert recipe.scores(pictures, prompts) == dict.fromkeys([*MIX, "all"], (1.0, 1.0))
