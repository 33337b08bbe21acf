"""Whether samples fit into memory, and a model knows their size; reference: by hand, and what decoding really holds."""

import sys
from pathlib import Path

import pytest
import torch

from sanarl import cli
from sanarl.config import load
from sanarl.errors import UserError
from sanarl.models.load import load_model
from sanarl.training import fitting
from sanarl.training.modelling import model_settings

CPU = torch.device("cpu")


def made(preset, *keys):
    config = load(preset, tuple(f"policy.diffusers.{key}" for key in keys)).config
    return load_model(model_settings(config), CPU), config


def test_decoding_holds_at_least_what_is_said():
    # By hand: the last level of tiny-image's decoder that has layers has 32 channels and half the side; read and
    # written, in float32. And by looking at what the layers of a real pass read and write.
    model, config = made("tiny-image-nft")
    said = fitting._decoding(model, config, 3)
    assert said == 2 * 3 * 32 * 32 * 32 * 4
    held = []
    for layer in model.pipeline.vae.decoder.modules():
        layer.register_forward_hook(
            lambda _layer, inputs, output: held.append(sum(x.nbytes for x in (*inputs, output) if torch.is_tensor(x)))
        )
    model.decode(torch.zeros(3, *model.latent_shape))
    assert said == max(held)
    tiled = made("tiny-image-nft", "vae_tiles=true")
    assert fitting._decoding(*tiled, 3) == fitting._decoding(*made("tiny-video-nft"), 3) == 0


def test_what_cannot_fit_is_refused_before_it_is_tried():
    # 65536 samples of 1024 x 1024, 8 channels of which are read and as many written: 4.4 TB, more than machines have.
    model, config = made("tiny-image-nft", "inference_size=[1024, 1024]")
    with pytest.raises(UserError, match=r"65536 sample\(s\) of that size take at least 4,398\.0 GB and this"):
        fitting.check_fits(model, config, 65536, CPU)
    fitting.check_fits(model, config, 1, CPU)


@pytest.mark.parametrize(
    ("preset", "size", "times"),
    [
        ("tiny-image-nft", "[64, 64]", None),
        ("tiny-image-nft", "[128, 128]", None),  # four times 64 x 64
        ("tiny-image-nft", "[128, 160]", "5"),
        ("tiny-image-nft", "[2048, 1024]", "512"),
        ("tiny-video-nft", "[64, 64]", None),
        ("tiny-video-nft", "[256, 128]", "8"),
    ],
)
def test_sizes_that_a_model_does_not_know_are_remarked_on(preset, size, times):
    said = fitting.stretched(*made(preset, f"inference_size={size}"))
    assert (said is None) == (times is None)
    if said is not None:
        assert f"is {times} times the area that tiny-{preset.split('-')[1]} was made for (64x64)" in said


def test_a_remark_reaches_the_person(tmp_path, capsys, monkeypatch):
    words = [
        "sample",
        "--model",
        "tiny-image",
        "--prompt",
        "a red circle",
        "--steps",
        "1",
        "--size",
        "160x128",
        "--quiet",
    ]
    monkeypatch.setattr(sys, "argv", ["sanarl", *words, "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err.startswith("warning: 160x128 is 5 times the area that tiny-image was made for")
    assert len(list(Path(tmp_path / "out").glob("0000_*.png"))) == 1
