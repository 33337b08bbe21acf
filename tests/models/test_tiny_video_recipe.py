"""The recipe of tiny-video still runs, a few steps of each stage, then the export; what it makes is not judged here."""

import argparse
import importlib
import json
from pathlib import Path

import pytest
import torch
from diffusers import SanaVideoPipeline

from sanarl.models.tiny_video import MAX_PROMPT_TOKENS, build_video_pipeline
from sanarl.shapes.motion import MIX, all_prompts

FOLDER = Path(__file__).parents[2] / "recipes"


@pytest.fixture
def recipe(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    module = importlib.import_module("tiny_video")
    monkeypatch.setattr(module, "EVALUATED", 8)
    return module


def test_pipelines_are_equal_for_equal_seeds_and_leave_the_random_state_alone():
    state = torch.random.get_rng_state()
    a, b, c = build_video_pipeline(0), build_video_pipeline(0), build_video_pipeline(1)
    assert torch.equal(state, torch.random.get_rng_state())
    assert type(a) is SanaVideoPipeline
    for part in ("vae", "text_encoder", "transformer"):
        weights = [getattr(p, part).state_dict() for p in (a, b, c)]
        assert all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0])
        assert any(not torch.equal(weights[0][k], weights[2][k]) for k in weights[0])
        assert not getattr(a, part).training
    count = sum(p.numel() for part in (a.vae, a.text_encoder, a.transformer) for p in part.parameters())
    assert 2 * count < 8e6  # bytes in float16


def test_every_caption_fits_with_a_token_a_word():
    tokenizer = build_video_pipeline(0).tokenizer
    lengths = set()
    for prompts in all_prompts().values():
        tokens = tokenizer(list(prompts[::7]))["input_ids"]
        assert [len(t) - 1 for t in tokens] == [len(p.split()) for p in prompts[::7]]
        lengths |= {len(t) for t in tokens}
    assert max(lengths) <= MAX_PROMPT_TOKENS


@torch.no_grad()
def test_the_recipe_decodes_as_the_autoencoder_does_but_for_the_clamp(recipe):
    vae = build_video_pipeline(0).vae
    z = 3 * torch.randn(2, 12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(recipe.decode(vae, z).clamp(-1, 1), vae.decode(z).sample)


@torch.no_grad()
def test_the_recipe_embeds_captions_as_the_text_encoder_does(recipe):
    pipeline = build_video_pipeline(0)
    tokens = recipe.tokenise(pipeline, ["a red circle moving right", "two blue squares moving up", ""])
    stock = pipeline.text_encoder(tokens["input_ids"], attention_mask=tokens["attention_mask"]).last_hidden_state
    real = tokens["attention_mask"].bool()
    torch.testing.assert_close(recipe.embed(pipeline, tokens)[real], stock[real])


def test_a_time_limit_ends_a_stage_by_its_schedule(recipe, monkeypatch):
    progress = recipe.Progress(100, 50.0)
    monkeypatch.setattr(progress, "limit_s", 50.0)
    monkeypatch.setattr(progress, "seconds", lambda: 20.0)
    progress.step = 10
    assert progress.value() == pytest.approx(0.4)
    progress.step = 60
    assert progress.value() == pytest.approx(0.6)


@pytest.mark.slow
def test_all_stages_run_and_are_kept(recipe, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(recipe, "CLEAN", recipe.Tuning(steps=2, limit_s=1, lr=1e-2, text_lr=1e-2, seed=0, batch=4))
    monkeypatch.setattr(recipe, "BASE", recipe.CLEAN)
    for name, value in {"AUTOENCODER_STEPS": 2, "PICTURES": 0.5, "PICTURES_AT_ONCE": 2, "CLIPS_AT_ONCE": 2}.items():
        monkeypatch.setattr(recipe, name, value)
    arguments = argparse.Namespace(out=tmp_path / "out", wrong=[0.5], target=0.4, num_clips=16, steps_scale=1.0)
    figures = recipe.run(arguments, tmp_path / "work")
    assert set(figures) == {"clips", "autoencoder", "clean", "base-50", "export"}
    assert set(figures["base-50"]["dev"]) == {"all", *MIX}
    exported, base = recipe.load(tmp_path / "out"), recipe.load(tmp_path / "work" / "base-50")
    assert exported.vae.config.latents_std != [1.0] * 12
    for p, q in zip(exported.transformer.parameters(), base.transformer.parameters(), strict=True):
        assert torch.equal(p, q.half().float())
    assert str(tmp_path) not in "".join(path.read_text() for path in (tmp_path / "out").rglob("*.json"))
    capsys.readouterr()
    again = recipe.run(arguments, tmp_path / "work")
    assert capsys.readouterr().out.count("kept from an earlier run") == 4
    assert json.dumps(again) == json.dumps(json.loads(json.dumps(figures)))
