"""PickScore, CLIPScore and HPSv2 on small random models of the real classes.

Reference: the published computations written out with the packages' own models and PIL or torchvision transforms, one
pair at a time.
"""

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from torchvision import transforms
from transformers import CLIPModel, CLIPProcessor

from sanarl.errors import UserError
from sanarl.rewards import frames
from sanarl.rewards.scorers.aesthetic import Aesthetic
from sanarl.rewards.scorers.clip import ClipScore, PickScore
from sanarl.rewards.scorers.hpsv2 import HPSv2

NONE = [{}] * 4


WIDTHS = (16, 1024, 128, 64, 16, 1)
PLACES = (0, 2, 4, 6, 7)


@pytest.fixture(scope="module")
def aesthetic_layers(tmp_path_factory):
    """The predictor's file with random values of the published names and shapes, on 16 features."""
    generator = torch.Generator().manual_seed(3)
    state = {}
    for place, before, after in zip(PLACES, WIDTHS, WIDTHS[1:], strict=False):
        state[f"layers.{place}.weight"] = torch.randn(after, before, generator=generator) * 2 / before**0.5
        state[f"layers.{place}.bias"] = torch.randn(after, generator=generator)
    file = tmp_path_factory.mktemp("aesthetic") / "aesthetic-model.pth"
    torch.save(state, file)
    return file


@pytest.fixture(scope="module")
def scorers(tiny_clip, tiny_open_clip, aesthetic_layers):
    architecture, checkpoint = tiny_open_clip

    def make(name, **given):
        if name == "aesthetic":
            return Aesthetic(model_path=str(aesthetic_layers), clip_path=str(tiny_clip), **given)
        if name == "hpsv2":
            return HPSv2(model_path=str(checkpoint), architecture=architecture, **given)
        return {"pickscore": PickScore, "clipscore": ClipScore}[name](model_path=str(tiny_clip), **given)

    return make


ALL = ["pickscore", "clipscore", "hpsv2", "aesthetic"]


def as_pil(picture):
    return Image.fromarray((picture[0] * 255).round().to(torch.uint8).permute(1, 2, 0).numpy())


def published_pickscore(tiny_clip, picture, prompt):
    model, processor = CLIPModel.from_pretrained(tiny_clip).eval(), CLIPProcessor.from_pretrained(tiny_clip)
    images = processor(images=[as_pil(picture)], return_tensors="pt")
    texts = processor(text=[prompt], padding=True, truncation=True, max_length=77, return_tensors="pt")
    with torch.no_grad():
        output = model(**images, **texts)
    return output.logits_per_text.item() / 26


def published_clipscore(tiny_clip, picture, prompt):
    model, processor = CLIPModel.from_pretrained(tiny_clip).eval(), CLIPProcessor.from_pretrained(tiny_clip)
    image = processor.image_processor
    steps = [
        transforms.Resize(32),
        transforms.CenterCrop((32, 32)),
        transforms.Normalize(image.image_mean, image.image_std),
    ]
    texts = processor(text=[prompt], padding="max_length", truncation=True, return_tensors="pt")
    with torch.no_grad():
        return model(pixel_values=transforms.Compose(steps)(picture), **texts).logits_per_image.item() / 30


def published_hpsv2(tiny_open_clip, picture, prompt):
    architecture, checkpoint = tiny_open_clip
    model = open_clip.create_model(architecture, load_weights=False).eval()
    model.load_state_dict(torch.load(checkpoint)["state_dict"])
    height, width = picture.shape[-2:]
    scale = 32 / max(height, width)
    small = transforms.functional.resize(
        picture[0], [round(height * scale), round(width * scale)], transforms.InterpolationMode.BICUBIC
    )
    square = torch.zeros(3, 32, 32)
    top, left = (32 - small.shape[1]) // 2, (32 - small.shape[2]) // 2
    square[:, top : top + small.shape[1], left : left + small.shape[2]] = small
    mean, std = torch.tensor(open_clip.OPENAI_DATASET_MEAN), torch.tensor(open_clip.OPENAI_DATASET_STD)
    pixels = (square - mean[:, None, None]) / std[:, None, None]
    with torch.no_grad():
        image, text, _ = model(pixels[None], open_clip.get_tokenizer(architecture)([prompt]))
    return (image @ text.T).item()


def published_aesthetic(tiny_clip, layers, picture):
    model, processor = CLIPModel.from_pretrained(tiny_clip).eval(), CLIPProcessor.from_pretrained(tiny_clip)
    pixels = processor(images=[as_pil(picture)], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        x = model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output)[0].double()
    x /= x.norm()
    state = torch.load(layers)
    for place in PLACES:  # one linear map after the other
        x = state[f"layers.{place}.weight"].double() @ x + state[f"layers.{place}.bias"].double()
    return x.item()


def published(name, picture, prompt, tiny_clip, tiny_open_clip, layers):
    if name == "aesthetic":
        return published_aesthetic(tiny_clip, layers, picture)
    if name == "hpsv2":
        return published_hpsv2(tiny_open_clip, picture, prompt)
    return {"pickscore": published_pickscore, "clipscore": published_clipscore}[name](tiny_clip, picture, prompt)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("turned", [False, True])
def test_scores_are_the_published_ones(
    name, turned, scorers, pictures, prompts, tiny_clip, tiny_open_clip, aesthetic_layers
):
    media = pictures.transpose(-1, -2) if turned else pictures
    scores = scorers(name)(media, prompts, NONE)
    assert scores.dtype == torch.float32
    assert scores.shape == (4,)
    assert not scores.requires_grad
    models = (tiny_clip, tiny_open_clip, aesthetic_layers)
    expected = [published(name, m, p, *models) for m, p in zip(media, prompts, strict=True)]
    np.testing.assert_allclose(scores.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert np.ptp(expected) > 1e-3  # the model tells the pairs apart
    scale = np.exp(2.6592) * 1.001  # of an untrained CLIP; the aesthetic layers have no bounds
    limit = {"pickscore": scale / 26, "clipscore": scale / 30, "hpsv2": 1, "aesthetic": np.inf}[name]
    assert scores.abs().max() <= limit


@pytest.mark.parametrize("name", ALL)
def test_a_batch_is_its_single_pictures(name, scorers, pictures, prompts):
    whole = scorers(name)(pictures, prompts, NONE)
    one = scorers(name, batch_size=1)
    three = scorers(name, batch_size=3)(pictures, prompts, NONE)
    single = torch.cat([one(pictures[i : i + 1], prompts[i : i + 1], [{}]) for i in range(4)])
    torch.testing.assert_close(whole, single, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(whole, three, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_a_clip_is_the_mean_over_its_chosen_frames(name, scorers, pictures, prompts):
    clip = pictures.transpose(0, 1)  # one clip of four frames
    scorer = scorers(name, frames=3)
    score = scorer(clip, prompts[:1], [{}])
    each = scorer(pictures[[0, 2, 3]], prompts[:1] * 3, [{}] * 3)
    torch.testing.assert_close(score, each.mean()[None], rtol=1e-5, atol=1e-6)
    whole = scorers(name, frames=4)(clip, prompts[:1], [{}])
    torch.testing.assert_close(whole, scorer(pictures, prompts[:1] * 4, NONE).mean()[None], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_lower_precision_on_a_named_device_stays_close(name, dtype, scorers, pictures, prompts):
    scorer = scorers(name, dtype=dtype, device="cpu")
    scores = scorer(pictures, prompts, NONE)
    assert scores.dtype == torch.float32
    model = scorer.model if name == "hpsv2" else scorer.clip.model
    assert {p.dtype for p in model.parameters()} == {frames.DTYPES[dtype]}
    assert not any(p.requires_grad for p in model.parameters())
    torch.testing.assert_close(scores, scorers(name)(pictures, prompts, NONE), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", ALL)
def test_no_pictures_no_scores(name, scorers, pictures):
    assert scorers(name)(pictures[:0], [], []).shape == (0,)


def test_long_prompts_are_cut(scorers, pictures):
    for name in ALL:
        assert torch.isfinite(scorers(name)(pictures[:1], ["cat " * 200], [{}])).all()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"dtype": "float"}, "dtype: found 'float'; accepted: float32, bfloat16, float16"),
        ({"version": "3"}, "v2.1, v2.0"),
    ],
)
def test_arguments_that_are_refused(given, expected, scorers):
    with pytest.raises(UserError, match=expected):
        scorers("hpsv2", **given)


def test_a_file_that_is_no_checkpoint_is_named(tmp_path, tiny_open_clip):
    (tmp_path / "x.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(UserError, match=r"x\.pt is no HPSv2 checkpoint"):
        HPSv2(model_path=str(tmp_path / "x.pt"), architecture=tiny_open_clip[0])


@pytest.mark.parametrize("name", ALL)
def test_the_worst_frame_counts_when_asked_for(name, scorers, pictures, prompts):
    # Reference: the smallest of the frames' own scores.
    scorer = scorers(name, frames=4, over_frames="min")
    score = scorer(pictures.transpose(0, 1), prompts[:1], [{}])
    each = scorer(pictures, prompts[:1] * 4, NONE)
    assert each.std() > 0
    torch.testing.assert_close(score, each.min()[None], rtol=1e-5, atol=1e-6)


def test_an_unknown_rule_for_frames_is_refused(scorers):
    with pytest.raises(UserError, match="over_frames: found 'max'; accepted: mean, min"):
        scorers("pickscore", over_frames="max")


def test_chosen_frames():
    """Reference: by hand."""
    assert frames.chosen_frames(1, 8) == [0]
    assert frames.chosen_frames(81, 1) == [40]
    assert frames.chosen_frames(81, 5) == [0, 20, 40, 60, 80]
    assert frames.chosen_frames(4, 8) == [0, 1, 2, 3]


def test_rows_that_are_finite():
    # Reference: by hand; finite numbers whose sum is not are finite.
    rows = torch.zeros(5, 1, 3, 2, 2)
    assert frames.finite_rows(rows).tolist() == [True] * 5
    rows[1, 0, 0, 0] = torch.tensor([float("inf"), float("-inf")])
    rows[2, 0, 1, 1, 1] = float("nan")
    rows[3] = 3e38
    assert frames.finite_rows(rows).tolist() == [True, False, False, True, True]
    assert frames.finite_rows(rows[:0]).tolist() == []


def test_pixels_that_are_not_finite_are_refused(scorers, pictures):
    pictures[1, 0, 0, 3, 3] = torch.nan
    with pytest.raises(UserError, match="NaN or infinity"):
        scorers("clipscore")(pictures, ["a"] * 4, NONE)


def test_each_text_is_encoded_once():
    seen = []

    def encode(texts):
        seen.append(texts)
        return torch.tensor([[float(len(text))] for text in texts])

    assert frames.each_once(["a", "bb", "a"], encode).tolist() == [[1.0], [2.0], [1.0]]
    assert seen == [["a", "bb"]]


def test_a_file_that_holds_no_layers_is_named(tmp_path, tiny_clip):
    torch.save({"layers.0.weight": torch.zeros(1, 1)}, tmp_path / "aesthetic-model.pth")
    with pytest.raises(UserError, match=r"aesthetic-model\.pth does not hold the predictor's layers"):
        Aesthetic(model_path=str(tmp_path), clip_path=str(tiny_clip))
