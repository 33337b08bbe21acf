"""Autoencoders in tiles agree with the untiled result as docs/numerics.md states, and are used when memory runs out."""

import math
import random
from functools import partial

import numpy as np
import pytest
import torch

from sanarl.models import tiles
from sanarl.models.tiny import load_pipeline, random_video_pipeline
from sanarl.models.vae import codec
from sanarl.shapes import captions, clips, drawing, motion

DOWN, ACROSS = 7, 2  # scenes of 64 pixels: 448 x 128


def media(name):
    """(1, F, 3, H, W): scenes of the shapes world side by side, so that a tile looks like what was trained on."""
    if name == "tiny-image":
        prompts = captions.balanced("dev", DOWN * ACROSS)
        scenes = [drawing.render(p, random.Random(p))[None] for p in prompts]
    else:
        prompts = motion.balanced("dev", DOWN * ACROSS)
        scenes = [clips.render(p, random.Random(p), 5) for p in prompts]
    rows = [np.concatenate(scenes[i * ACROSS : (i + 1) * ACROSS], 2) for i in range(DOWN)]
    return torch.from_numpy(np.concatenate(rows, 1)).permute(0, 3, 1, 2)[None].float() / 255


def rms(x):
    return x.square().mean().sqrt().item()


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "latents", "pixels"),
    [("tiny-image", 0.12, 0.002), ("tiny-video", 0.006, 0.012)],
)
def test_tiles_agree_with_the_untiled_result(name, latents, pixels):
    # Reference: the trained autoencoders on whole media of 448 pixels; bounds of docs/numerics.md.
    vae, x = load_pipeline(name).vae, 2 * media(name) - 1
    coder = codec(vae)
    z = coder.encode(vae, x)
    y = coder.decode(vae, z)
    tiles.enable_tiles(vae)
    tiled, shown = coder.encode(vae, x), coder.decode(vae, z)
    assert 0 < rms(tiled - z) / rms(z) < latents
    assert 0 < rms(shown - y) / 2 < pixels
    # Through both and back, tiles cost nothing that could be seen: decibels against the media themselves.
    whole, pieces = (-20 * math.log10(rms(got - x) / 2) for got in (y, coder.decode(vae, tiled)))
    assert pieces > whole - 0.1


def test_pieces_in_time_lie_where_they_belong():
    # Reference: the whole at once, for a coder that looks two latent frames back: pairs of latents, mean over 4 frames.
    def encode(clip):
        latents = torch.cat([clip[:, :, :1], clip[:, :, 1:].unflatten(2, (-1, 4)).mean(3)], dim=2)
        return latents + latents.roll(2, 2).index_fill(2, torch.arange(2), 0.0)

    def decode(latents):
        held = latents + latents.roll(1, 2).index_fill(2, torch.arange(1), 0.0)
        return held.repeat_interleave(4, 2)[:, :, 3:] * (1 + torch.arange(4 * latents.shape[2] - 3).view(1, 1, -1) % 4)

    clip = torch.rand(1, 3, 41, generator=torch.Generator().manual_seed(0))
    whole = encode(clip)
    # The first frame of a piece is a latent frame of its own, so context that is looked at twice counts for less.
    torch.testing.assert_close(tiles.encode_in_time(encode, clip, 4)[:, :, :4], whole[:, :, :4])
    still = clip[:, :, :1].expand(1, 3, 41)
    torch.testing.assert_close(tiles.encode_in_time(encode, still, 4), encode(still))
    torch.testing.assert_close(tiles.decode_in_time(decode, whole, 4), decode(whole))


@torch.no_grad()
def test_tiles_in_time_agree_with_the_whole(ltx2):
    # Reference: the whole clip of 65 frames, noise changing slowly; random weights.
    vae, coder = ltx2(), codec(ltx2())
    ends = torch.rand(2, 1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    x = 2 * torch.lerp(ends[0], ends[1], torch.linspace(0, 1, 65).view(-1, 1, 1, 1))[None] - 1
    z = coder.encode(vae, x)
    y = coder.decode(vae, z)
    assert z.shape == (1, *coder.latent_shape(4, 65, (64, 64))) == (1, 4, 9, 2, 2)
    tiles.enable_tiles(vae)
    tiled, shown = coder.encode(vae, x), coder.decode(vae, z)
    assert shown.shape == y.shape == x.shape
    assert 0 < rms(tiled - z) / rms(z) < 0.02
    assert 0 < rms(shown - y) / rms(y) < 0.08
    assert torch.equal(tiled[:, :, :1], z[:, :, :1])


# ---- when memory runs out


class Small:
    """Refuses what is larger than ``fits`` values, as a GPU does."""

    def __init__(self, vae, fits):
        self.vae, self.fits, self.sizes = vae, fits, []

    def __call__(self, x):
        if x.numel() > self.fits and not self.vae.use_tiling:
            raise torch.OutOfMemoryError("there is no room")
        self.sizes.append(len(x))
        return codec(self.vae).encode(self.vae, x)


@torch.no_grad()
def test_a_batch_that_does_not_fit_is_taken_one_by_one():
    # Reference: the batch as a whole; rounding of float32 apart.
    vae = random_video_pipeline().vae
    x = torch.rand(3, 5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    small = Small(vae, x[0].numel())
    found = tiles.Thrift(vae, "auto")(small, x)
    assert small.sizes == [1, 1, 1]
    assert not vae.use_tiling
    torch.testing.assert_close(found, codec(vae).encode(vae, x), rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_sample_that_does_not_fit_is_taken_in_tiles_and_that_is_said():
    vae = random_video_pipeline().vae
    x = torch.rand(2, 5, 3, 32, 288, generator=torch.Generator().manual_seed(0))
    small, thrift = Small(vae, 100), tiles.Thrift(vae, "auto")
    with pytest.warns(RuntimeWarning, match=r"memory ran out for one sample \(1, 5, 3, 32, 288\)"):
        found = thrift(small, x)
    assert small.sizes == [1, 1]
    assert vae.use_tiling
    torch.testing.assert_close(thrift(small, x), found, rtol=0, atol=1e-5)  # from now on, without a word


@pytest.mark.parametrize(("asked", "batch"), [(False, 1), ("auto", 1), (True, 1)])
def test_what_nothing_helps_against_is_an_error(asked, batch):
    vae = random_video_pipeline().vae

    def never(_):
        raise torch.OutOfMemoryError("there is no room")

    thrift = tiles.Thrift(vae, asked)
    assert vae.use_tiling is (asked is True)
    if asked == "auto":
        with pytest.warns(RuntimeWarning), pytest.raises(torch.OutOfMemoryError):
            thrift(never, torch.zeros(batch))
    else:
        with pytest.raises(torch.OutOfMemoryError):
            thrift(never, torch.zeros(batch))


# ---- LTX-2's autoencoder and the dtype asked for


def test_ltx2_in_a_pipeline_is_decoded_as_the_stock_pipeline_does(ltx2):
    # Reference: SanaVideoPipeline's own decoding of the same latents, which reads latents_mean and latents_std.
    from diffusers import SanaVideoPipeline

    from sanarl.models.base import Use
    from sanarl.models.sana import Sana

    stock = random_video_pipeline()
    pipeline = SanaVideoPipeline(**{**stock.components, "vae": ltx2()})
    pipeline.set_progress_bar_config(disable=True)
    model = Sana(pipeline, Use((64, 128), torch.device("cpu"), frames=9, max_prompt_length=12))
    assert model.latent_shape == (4, 2, 2, 4)
    noise = torch.randn(1, *model.latent_shape, generator=torch.Generator().manual_seed(2))
    asked = {"height": 64, "width": 128, "frames": 9, "num_inference_steps": 1, "sigmas": [1.0], "guidance_scale": 1.0}
    asked |= {"use_resolution_binning": False, "max_sequence_length": 12, "complex_human_instruction": None}
    latents = pipeline("a red circle", latents=noise, output_type="latent", **asked)[0]
    shown = pipeline("a red circle", latents=noise, output_type="np", **asked)[0]
    assert abs(model.decode(latents)[0].permute(0, 2, 3, 1).numpy() - shown[0]).max() < 1e-5
    clip = torch.rand(1, 9, 3, 64, 128, generator=torch.Generator().manual_seed(3))
    by_hand = pipeline.vae.encode((2 * clip - 1).transpose(1, 2)).latent_dist.mode()
    mean, std = (x.view(1, -1, 1, 1, 1) for x in (pipeline.vae.latents_mean, pipeline.vae.latents_std))
    torch.testing.assert_close(model.encode_media(clip, 1), ((by_hand - mean) / std).detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("count", [1, 5])
def test_autoencoders_compute_in_the_dtype_asked_for(make_sana, count, monkeypatch):
    # Reference: float32; bfloat16 keeps 8 bits.
    exact, half = make_sana(frames=count), make_sana(frames=count)
    torch.nn.Module.to(half.pipeline.vae, torch.bfloat16)
    seen = []
    for name in ("encode", "decode"):
        run = getattr(type(half.pipeline.vae), name)
        watched = partial(lambda run, self, x, **named: (seen.append(x.dtype), run(self, x, **named))[1], run)
        monkeypatch.setattr(type(half.pipeline.vae), name, lambda self, x, w=watched, **named: w(self, x, **named))
    media = torch.rand(1, count, 3, 32, 64, generator=torch.Generator().manual_seed(0))
    latents = half.encode_media(media, 1)
    shown = half.decode(latents)
    assert seen == [torch.bfloat16] * 2
    assert latents.dtype == shown.dtype == torch.float32
    torch.testing.assert_close(latents, exact.encode_media(media, 1), rtol=0, atol=0.1)
    torch.testing.assert_close(shown, exact.decode(latents), rtol=0, atol=0.05)
