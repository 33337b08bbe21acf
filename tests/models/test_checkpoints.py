"""The published SANA-Video checkpoints' shape: presets, sizes, frames, from a hub id or a folder."""

import shutil

import pytest
import torch
from diffusers import SanaVideoPipeline

from sanarl.config import ConfigError, load
from sanarl.models.load import load_model
from sanarl.models.tiny import random_video_pipeline
from sanarl.training.build import model_settings

WAN, LTX = "Efficient-Large-Model/SANA-Video_2B_480p_diffusers", "Efficient-Large-Model/SANA-Video_2B_720p_diffusers"
CHECKPOINTS = {
    # Wan packs 4 frames and 8 pixels a side into a cell, LTX-2's autoencoder 8 and 32.
    WAN: ((480, 832), 41, (4, 11, 60, 104)),
    LTX: ((704, 1280), 81, (4, 11, 22, 40)),
}


@pytest.fixture(scope="module")
def published(tmp_path_factory, ltx2):
    """Hub id -> a folder with small random weights and the autoencoder's class of that checkpoint."""
    parent = tmp_path_factory.mktemp("published")
    random_video_pipeline().save_pretrained(parent / "wan")
    SanaVideoPipeline(**{**random_video_pipeline().components, "vae": ltx2()}).save_pretrained(parent / "ltx")
    return {WAN: parent / "wan", LTX: parent / "ltx"}


def settings(name, size, frames, *others):
    keys = [f'policy.model_name_or_path="{name}"', f"policy.diffusers.inference_size={list(size)}"]
    keys += [f"policy.diffusers.{key}={frames}" for key in ("inference_frames", "train_frames")]
    return load("sana-video-sft", [*keys, "policy.diffusers.is_video=true", *others]).config


@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.parametrize("place", ["hub", "folder"])
@pytest.mark.filterwarnings("ignore:The `local_dir_use_symlinks` argument is deprecated:UserWarning")  # diffusers' own
def test_checkpoints_of_both_sizes(name, place, published, tmp_path, monkeypatch):
    # Reference: latent shapes by hand.
    from huggingface_hub import constants

    size, frames, shape = CHECKPOINTS[name]
    if place == "hub":
        hub = tmp_path / f"models--{name.replace('/', '--')}"
        (hub / "refs").mkdir(parents=True)
        (hub / "refs" / "main").write_text("1" * 40)
        shutil.copytree(published[name], hub / "snapshots" / ("1" * 40))
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    config = settings(name if place == "hub" else published[name], size, frames)
    assert (config.modality, config.sample_frames, config.item_frames) == ("video", frames, frames)
    model = load_model(model_settings(config), torch.device("cpu"))
    assert model.latent_shape == shape
    small = torch.rand(1, 9, 3, 64, 64)
    assert model.decode(model.encode_media(small, 1)).shape == small.shape


@pytest.mark.parametrize("key", ["inference_frames", "train_frames"])
@pytest.mark.parametrize(("found", "near"), [(40, 37), (42, 41), (0, 1)])
def test_frames_are_4k_plus_1(key, found, near):
    with pytest.raises(ConfigError) as caught:
        load("sana-video-sft", [f"policy.diffusers.{key}={found}"])
    assert f"policy.diffusers.{key}: found {found}; accepted" in str(caught.value)
    assert found == 0 or f"nearest {near}" in str(caught.value)


def test_frames_that_the_autoencoder_cannot_pack(published):
    # 45 frames are 4k + 1, and LTX-2's autoencoder packs eight.
    from sanarl.errors import UserError

    with pytest.raises(UserError, match=r"inference_frames: found 45; .* multiple of 8"):
        load_model(model_settings(settings(published[LTX], (704, 1280), 45)), torch.device("cpu"))


def test_the_preset_takes_its_frames_a_second_from_the_configuration():
    assert load("sana-video-sft").config.policy.diffusers.fps == 16.0  # SANA-Video's
    assert load("sana-video-sft", ["policy.diffusers.fps=24"]).config.policy.diffusers.fps == 24.0
