"""Latents and embeddings from the cache are those that the model computes, and stale ones are never read."""

import json

import pytest
import torch
from PIL import Image

from sanarl.data.store import Store
from sanarl.training.cached import Cached

PROMPTS = ["a cat", "a dog", "a cat", ""]


class Counting:
    """A model that says what it was asked for."""

    def __init__(self, model):
        self.model, self.asked = model, []
        self.transformer, self.pipeline = model.transformer, model.pipeline
        self.flow_shift, self.latent_shape = model.flow_shift, model.latent_shape

    def encode_media(self, media, mini_batch):
        self.asked.append(len(media))
        return self.model.encode_media(media, mini_batch)

    def encode_prompts(self, prompts):
        self.asked.append(tuple(prompts))
        return self.model.encode_prompts(prompts)


@pytest.fixture
def wrapped(make_sana, tmp_path):
    """A function that gives (counter, cached model) over the folder of this test."""

    def make(seed=0, around="", **options):
        counter = Counting(make_sana(seed, **options))
        return counter, Cached(counter, Store(tmp_path / "cache"), around)

    return make


def media(n, seed=0):
    return torch.rand(n, 1, 3, 32, 64, generator=torch.Generator().manual_seed(seed))


def test_latents_are_computed_once(wrapped):
    counter, model = wrapped()
    expected = counter.model.encode_media(media(4), 2)
    assert torch.equal(model.encode_media(media(4), 2), expected)
    assert torch.equal(model.encode_media(media(4), 2), expected)
    assert torch.equal(model.encode_media(media(4)[[3, 1]], 2), expected[[3, 1]])
    assert counter.asked == [4]
    model.encode_media(torch.cat([media(2), media(1, seed=1)]), 2)
    assert counter.asked == [4, 1]
    again, other = wrapped()
    assert torch.equal(other.encode_media(media(4), 2), expected)
    assert again.asked == []


def test_embeddings_are_computed_once_a_prompt(wrapped):
    counter, model = wrapped()
    expected = counter.model.encode_prompts(PROMPTS)
    for _ in range(2):
        found = model.encode_prompts(PROMPTS)
        assert torch.equal(found.embeds, expected.embeds)
        assert torch.equal(found.mask, expected.mask)
        assert found.mask.dtype == expected.mask.dtype
    assert counter.asked == [("a cat", "a dog", "")]
    assert model.encode_prompts([]).embeds.shape[0] == 0


def test_another_pixel_size_or_autoencoder_is_another_entry(wrapped):
    counter, model = wrapped()
    model.encode_media(media(1), 1)
    changed = media(1)
    changed[0, 0, 0, 0, 0] += 1e-6
    model.encode_media(changed, 1)
    model.encode_media(media(1)[..., :32], 1)
    assert counter.asked == [1, 1, 1]
    other, second = wrapped(seed=1)
    second.encode_media(media(1), 1)
    assert other.asked == [1]
    one_weight, third = wrapped()
    with torch.no_grad():
        next(iter(third.pipeline.vae.parameters())).view(-1)[0] += 1e-3
    third.encode_media(media(1), 1)
    assert one_weight.asked == [1]


def test_another_text_encoder_or_length_is_another_entry(wrapped):
    wrapped()[1].encode_prompts(["a cat"])
    for changes in ({"seed": 1}, {"around": "length 300"}):
        counter, model = wrapped(**changes)
        model.encode_prompts(["a cat"])
        assert counter.asked == [("a cat",)], changes


def test_a_damaged_entry_is_computed_again(wrapped, tmp_path):
    counter, model = wrapped()
    expected = model.encode_media(media(1), 1)
    (file,) = (tmp_path / "cache").rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-4])
    assert torch.equal(model.encode_media(media(1), 1), expected)
    assert counter.asked == [1, 1]


@pytest.fixture
def folder(tmp_path):
    for i in range(6):
        Image.effect_noise((70, 64), 90).save(tmp_path / f"{i}.png")
        (tmp_path / f"{i}.json").write_text(json.dumps({"prompt": f"noise {'abcdef'[i]}"}))
    return tmp_path


def test_training_gives_the_same_losses_and_never_encodes_twice(train, folder, tmp_path_factory, monkeypatch):
    """Reference: the same run without a cache. Rounding may differ where batches of the autoencoder do."""
    from diffusers import AutoencoderDC

    calls, encode = [], AutoencoderDC.encode

    def watched(self, x, *args, **named):
        calls.append(len(x))
        return encode(self, x, *args, **named)

    monkeypatch.setattr(AutoencoderDC, "encode", watched)
    cache = f"data.cache={tmp_path_factory.mktemp('cache')}"
    keys = [
        f"train.train_policy.dataset.local_dir={folder}",
        'train.train_policy.dataset.name=""',
        "validation.enable=false",
        "train.ckpt.enable_checkpoint=false",
    ]
    losses, encoded = {}, {}
    for name, more in (("without", []), ("first", [cache]), ("second", [cache])):
        calls.clear()
        found = train("sft-lora", *keys, *more, into=name, module="sanarl.datasets.diffusers_dataset")
        losses[name], encoded[name] = [line["loss"] for line in found.metrics], sum(calls)
    assert encoded["first"] == 6 < encoded["without"]
    assert encoded["second"] == 0
    assert losses["first"] == pytest.approx(losses["without"], rel=1e-5)
    assert losses["second"] == pytest.approx(losses["first"], rel=1e-6)
