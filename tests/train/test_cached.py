"""Latents and embeddings from the cache are those that the model computes, and stale ones are never read."""

import copy
import json

import pytest
import torch
from PIL import Image
from tokenizers.normalizers import Lowercase

from sanarl.data.buckets import grid
from sanarl.data.folder import MediaFolder, View
from sanarl.data.module import Items, checked_sft
from sanarl.data.store import Store
from sanarl.training.cached import Cached, encoded, without_known_media

PROMPTS = ["a cat", "a dog", "a cat", ""]


class Counting:
    """A model that says what it was asked for."""

    def __init__(self, model):
        self.model, self.asked = model, []
        self.transformer, self.pipeline = model.transformer, model.pipeline
        self.device, self.flow_shift, self.latent_shape = model.device, model.flow_shift, model.latent_shape
        self.embeds_guidance, self.num_tokens, self.text_tokens = model.embeds_guidance, 0, 0

    def encode_media(self, media, mini_batch):
        self.asked.append(len(media))
        return self.model.encode_media(media, mini_batch)

    def encode_prompts(self, prompts):
        self.asked.append(tuple(prompts))
        return self.model.encode_prompts(prompts)


@pytest.fixture
def wrapped(make_sana, tmp_path):
    """A function that gives (counter, cached model) over the folder of this test."""

    def make(seed=0, around="", change=None, **options):
        counter = Counting(make_sana(seed, **options))
        with torch.no_grad():
            (change or id)(counter)
        return counter, Cached(counter, Store(tmp_path / "cache"), around)

    return make


def media(n, seed=0):
    return torch.rand(n, 1, 3, 32, 64, generator=torch.Generator().manual_seed(seed))


def latents(model, pixels, mini_batch=2):
    """Of media that no file is known of."""
    return torch.stack(encoded(model, [{"prompt": "a", "media": one} for one in pixels], mini_batch))


def test_a_shallow_copy_with_another_transformer_is_that_model(wrapped):
    # Reference: the wrapped model, which keeps its own.
    counter, model = wrapped()
    twin = copy.copy(model)
    twin.transformer = torch.nn.Identity()
    assert type(twin.transformer) is torch.nn.Identity
    assert model.transformer is counter.transformer is counter.model.transformer


def test_latents_are_computed_once(wrapped):
    counter, model = wrapped()
    expected = counter.model.encode_media(media(4), 2)
    assert torch.equal(latents(counter, media(4)), expected)
    counter.asked.clear()
    assert torch.equal(latents(model, media(4)), expected)
    assert torch.equal(latents(model, media(4)), expected)
    assert torch.equal(latents(model, media(4)[[3, 1]]), expected[[3, 1]])
    assert counter.asked == [4]
    latents(model, torch.cat([media(2), media(1, seed=1)]))
    assert counter.asked == [4, 1]
    again, other = wrapped()
    assert torch.equal(latents(other, media(4)), expected)
    assert again.asked == []


def test_media_of_several_sizes_and_of_8_bits_keep_their_places(wrapped):
    """Reference: each sample encoded on its own."""
    counter, model = wrapped()
    samples = [media(1)[0], media(1)[0, ..., :32], media(1, seed=2)[0], (media(1, seed=3)[0] * 255).byte()]
    for source in (counter.model, model, model):
        found = encoded(source, [{"prompt": "a", "media": one} for one in samples], 2)
        for one, mine in zip(samples, found, strict=True):
            whole = one if one.dtype == torch.float32 else one / 255
            torch.testing.assert_close(mine, counter.model.encode_media(whole[None], 1)[0], rtol=1e-4, atol=1e-6)


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
    latents(model, media(1))
    changed = media(1)
    changed[0, 0, 0, 0, 0] += 1e-6
    latents(model, changed)
    latents(model, media(1)[..., :32])
    assert counter.asked == [1, 1, 1]
    other, second = wrapped(seed=1)
    latents(second, media(1))
    assert other.asked == [1]
    one_weight, third = wrapped(change=lambda model: next(iter(model.pipeline.vae.parameters())).view(-1)[0].add_(1e-3))
    latents(third, media(1))
    assert one_weight.asked == [1]


def test_another_text_encoder_or_length_is_another_entry(wrapped):
    wrapped()[1].encode_prompts(["a cat"])
    for changes in ({"seed": 1}, {"around": "length 300"}):
        counter, model = wrapped(**changes)
        model.encode_prompts(["a cat"])
        assert counter.asked == [("a cat",)], changes

    def lowercase(model):
        model.pipeline.tokenizer.backend_tokenizer.normalizer = Lowercase()

    counter, model = wrapped(change=lowercase)
    model.encode_prompts(["a cat"])
    assert counter.asked == [("a cat",)]
    counter, model = wrapped()
    model.encode_prompts(["a cat", "a cat ", "A cat"])
    assert counter.asked == [("a cat ", "A cat")]


def items(folder, view):
    source = MediaFolder(folder, view)
    return Items(source, "m", None, lambda item, i: checked_sft(item, i, "m", view.sizes))


@pytest.fixture
def pair(tmp_path):
    folder = tmp_path / "pairs"
    folder.mkdir()
    noise = [Image.effect_noise((80, 70), 90).rotate(angle) for angle in (0, 90, 180, 0)]
    Image.merge("RGBA", noise).save(folder / "a.png")
    (folder / "a.txt").write_text("a cat")
    return folder


VIEW = View(((32, 64),))


def test_a_file_whose_latents_are_known_is_not_decoded(wrapped, pair, monkeypatch):
    """Reference: the latents of the decoded file."""
    counter, model = wrapped()
    (first,) = encoded(model, [without_known_media(items(pair, VIEW), model)[0]], 1)
    plain = items(pair, VIEW)[0]["media"]
    assert torch.equal(first, counter.model.encode_media(plain[None], 1)[0])
    monkeypatch.setattr(View, "read", None)
    again, model = wrapped()
    item = without_known_media(items(pair, VIEW), model)[0]
    assert item.keys() == {"prompt", "latents"}
    assert torch.equal(encoded(model, [item], 1)[0], first)
    assert again.asked == []


@pytest.mark.parametrize(
    ("what", "view"),
    [
        ("nothing", VIEW),
        ("caption", VIEW),
        ("content", VIEW),
        ("size", View(((64, 64),))),
        ("buckets", View(grid((64, 64)))),
        ("colour behind it", View(((32, 64),), background=(0, 0, 0))),
        ("autoencoder", VIEW),
    ],
)
def test_what_a_latent_is_named_by(wrapped, pair, what, view):
    """One part of the name is changed, and the entry is no longer found. A caption is not part of a latent's name."""
    _, model = wrapped()
    encoded(model, [without_known_media(items(pair, VIEW), model)[0]], 1)
    if what == "caption":
        (pair / "a.txt").write_text("a dog")
    elif what == "content":
        data = bytearray((pair / "a.png").read_bytes())
        (pair / "a.png").write_bytes(data + b"\0")  # the same picture in other bytes
    scale = 0.5 if what == "autoencoder" else 1.0
    counter, model = wrapped(change=lambda model: model.pipeline.vae.register_to_config(scaling_factor=scale))
    item = without_known_media(items(pair, view), model)[0]
    known = what in ("nothing", "caption")
    assert ("latents" in item) == known
    assert item["prompt"] == ("a dog" if what == "caption" else "a cat")
    encoded(model, [item], 1)
    assert counter.asked == ([] if known else [1])


def test_a_file_that_changes_while_it_is_read_leaves_nothing(wrapped, pair, monkeypatch):
    """Else the latents of the new content would stand under the old one's name, and be found when it comes back."""
    old, read = (pair / "a.png").read_bytes(), View.read

    def changed(self, path):
        Image.new("RGB", (80, 70), (1, 2, 3)).save(path)
        return read(self, path)

    monkeypatch.setattr(View, "read", changed)
    _, model = wrapped()
    encoded(model, [without_known_media(items(pair, VIEW), model)[0]], 1)
    monkeypatch.undo()
    (pair / "a.png").write_bytes(old)
    assert "latents" not in without_known_media(items(pair, VIEW), model)[0]


def test_a_damaged_entry_is_computed_again(wrapped, tmp_path):
    counter, model = wrapped()
    expected = latents(model, media(1))
    (file,) = (tmp_path / "cache").rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-4])
    assert torch.equal(latents(model, media(1)), expected)
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

    decoded, read = [], View.read
    monkeypatch.setattr(View, "read", lambda self, path: (decoded.append(path), read(self, path))[1])
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
    losses, encoded, files = {}, {}, {}
    for name, more in (("without", []), ("first", [cache]), ("second", [cache])):
        calls.clear()
        decoded.clear()
        found = train("sft-lora", *keys, *more, into=name, module="sanarl.datasets.diffusers_dataset")
        losses[name], encoded[name] = [line["loss"] for line in found.metrics], sum(calls)
        files[name] = len(decoded)
    assert encoded["first"] == 6 < encoded["without"] == 24
    assert encoded["second"] == 0
    assert files == {"without": 24, "first": 6, "second": 0}
    assert losses["first"] == pytest.approx(losses["without"], rel=1e-5)
    assert losses["second"] == pytest.approx(losses["first"], rel=1e-6)
