"""[policy] without its adapter and its sampling: each case shows its key being honoured, refused, or without effect."""

import json

import pytest
import torch

from sanarl.algorithms import forward
from sanarl.config import ConfigError
from sanarl.data import module
from sanarl.errors import UserError
from sanarl.models.load import load_model
from sanarl.training import modelling, settings

honours = pytest.mark.honours
DIFFUSERS, TASK = "policy.diffusers", "train.train_policy"


# ---- the model


@honours("policy.model_name_or_path")
def test_model(lab, tmp_path):
    from sanarl.models.tiny import random_pipeline

    random_pipeline(1).save_pretrained(tmp_path / "other")
    other = lab.quick("sft-lora", f'policy.model_name_or_path="{tmp_path / "other"}"')
    assert other.metrics[0]["loss"] != lab.quick("sft-lora").metrics[0]["loss"]
    assert other.metrics[0]["sigma"] == lab.quick("sft-lora").metrics[0]["sigma"]


@honours("policy.is_diffusers")
def test_other_models_are_refused(lab):
    with pytest.raises(ConfigError, match=r"policy\.is_diffusers: found false; accepted true"):
        lab.loaded("sft", "policy.is_diffusers=false")


@honours("policy.model_revision")
@pytest.mark.filterwarnings("ignore:The `local_dir_use_symlinks` argument is deprecated:UserWarning")  # diffusers' own
def test_revision(lab, pipeline_folder, tmp_path, monkeypatch):
    # A hub cache on the disk: two revisions of one pipeline, of which the second has another flow shift.
    from huggingface_hub import constants

    hub = tmp_path / "models--some--pipeline"
    for name, digest, shift in (("first", "1" * 40, 3.0), ("second", "2" * 40, 7.0)):
        snapshot = hub / "snapshots" / digest
        snapshot.parent.mkdir(parents=True, exist_ok=True)
        copied(pipeline_folder, snapshot)
        file = snapshot / "scheduler" / "scheduler_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"shift": shift}))
        (hub / "refs").mkdir(exist_ok=True)
        (hub / "refs" / name).write_text(digest)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for name, shift in (("first", 3.0), ("second", 7.0)):
        keys = 'policy.model_name_or_path="some/pipeline"', f'policy.model_revision="{name}"'
        with lab.parts("sft", *keys) as made:
            assert made.model.flow_shift == shift
    with pytest.raises(UserError, match=r"policy\.model_revision: found 'first', but .* is no hub id"):
        lab.parts("sft", 'policy.model_revision="first"')


def copied(source, target):
    import shutil

    shutil.copytree(source, target)


@honours("policy.model_gradient_checkpointing")
def test_gradient_checkpointing(lab, monkeypatch):
    # The backward pass calls every block again: 2 mini-batches x 2 blocks more. Values stay, bit by bit.
    from diffusers.models.transformers.sana_transformer import SanaTransformerBlock

    calls, forward = [], SanaTransformerBlock.forward
    monkeypatch.setattr(SanaTransformerBlock, "forward", lambda *a, **n: (calls.append(1), forward(*a, **n))[1])
    plain = lab.fresh("sft-lora", "policy.model_gradient_checkpointing=false")
    without = len(calls)
    again = lab.fresh("sft-lora", "policy.model_gradient_checkpointing=true")
    assert (without, len(calls) - without) == (4, 8)
    half = lab.fresh("sft-lora", 'policy.model_gradient_checkpointing="selective"')
    assert len(calls) - without - 8 == 6
    assert lab.equal(again, plain)
    assert lab.equal(half, plain)


@honours("policy.memory_plan")
def test_memory_plan(lab):
    # There is room for a pass of all 6 samples without checkpointing, whatever is written.
    written = "policy.model_gradient_checkpointing=true", "train.train_policy.mini_batch=2"
    for kind, expected in (("as_written", ("full", 2)), ("auto", ("off", 6))):
        run = lab.fresh("sft-lora", *written, f'policy.memory_plan="{kind}"')
        told = json.loads((run.folder / "memory.json").read_text())
        assert (told["memory_plan"], told["checkpointing"], told["mini_batch"]) == (kind, *expected)
        assert f"memory plan ({kind}): checkpointing {expected[0]}" in (run.folder / "log.txt").read_text()


# ---- text, sizes, dtypes, places


@honours(f"{DIFFUSERS}.dtype")
def test_dtype_of_text_encoder_and_autoencoder(lab):
    key = f'{DIFFUSERS}.dtype="bfloat16"'
    with lab.parts("sft-lora", key) as made:
        pipeline = made.model.pipeline
        kinds = {pipeline.vae.dtype, pipeline.text_encoder.dtype}
        assert (kinds, pipeline.transformer.dtype) == ({torch.bfloat16}, torch.float32)
    half, full = lab.quick("sft-lora", key).metrics[0]["loss"], lab.quick("sft-lora").metrics[0]["loss"]
    assert half != full
    assert half == pytest.approx(full, rel=0.05)


@honours(f"{DIFFUSERS}.is_video")
def test_pictures_and_clips(lab):
    with pytest.raises(ConfigError, match=r"is_video: found false; accepted true: .* makes video"):
        lab.loaded("sft", 'policy.model_name_or_path="org/SANA-Video"')
    with pytest.raises(ConfigError, match=r"is_video: found true; accepted false: .* makes images"):
        lab.loaded("sft", 'policy.model_name_or_path="tiny-image"', f"{DIFFUSERS}.is_video=true")


VIDEO = 'policy.model_name_or_path="org/SANA-Video"', f"{DIFFUSERS}.is_video=true"


@honours(f"{DIFFUSERS}.train_frames")
def test_frames_of_a_training_clip(lab):
    for frames in (5, 9):
        config = lab.loaded("sft", *VIDEO, f"{DIFFUSERS}.train_frames={frames}").config
        assert module.load("sanarl.datasets.shapes").train(config)[0]["media"].shape == (frames, 3, 32, 32)
        with pytest.raises(UserError, match=rf"accepted: a tensor \({frames}, 3, 32, 32\)"):
            module.load(lab.items).train(config)[0]  # its items have one frame
    assert f"{DIFFUSERS}.train_frames" in lab.idle("sft", f"{DIFFUSERS}.train_frames=5")


@honours(f"{DIFFUSERS}.inference_frames")
def test_frames_of_a_sample(lab, tmp_path):
    from sanarl.models.tiny import random_video_pipeline

    random_video_pipeline().save_pretrained(tmp_path / "clips")
    keys = f'policy.model_name_or_path="{tmp_path / "clips"}"', f"{DIFFUSERS}.is_video=true"
    for frames in (5, 9):
        config = lab.loaded("nft", *keys, f"{DIFFUSERS}.inference_frames={frames}").config
        model = load_model(modelling.model_settings(config), torch.device("cpu"))
        assert model.decode(torch.zeros(1, *model.latent_shape)).shape == (1, frames, 3, 32, 32)
    assert lab.idle("nft", f"{DIFFUSERS}.inference_frames=9") == [f"{DIFFUSERS}.inference_frames"]


@honours(f"{DIFFUSERS}.fps")
def test_frames_a_second(lab, monkeypatch):
    # What it does to a file, tests/rollout/test_clips.py shows.
    from sanarl.rollout import preview

    rates, singles = [], preview.singles
    monkeypatch.setattr(preview, "singles", lambda *args: (rates.append(args[4]), singles(*args))[1])
    lab.fresh("sft-lora", "validation.enable=true", "validation.val_before_train=false", f"{DIFFUSERS}.fps=7.5")
    assert rates == [7.5]


@honours(f"{DIFFUSERS}.fps")
def test_frames_a_second_of_clips_that_are_read(lab, tmp_path):
    # A clip of 16 frames a second, each lighter by 1 / 20 than the one before.
    from sanarl.rollout.clips import write_mp4

    write_mp4(torch.linspace(0, 1, 21)[:, None, None, None].expand(21, 3, 32, 32), tmp_path / "clip.mp4", 16)
    (tmp_path / "clip.json").write_text(json.dumps({"prompt": "it gets light"}))
    keys = f'{TASK}.dataset.local_dir="{tmp_path}"', f'{TASK}.dataset.name=""', f"{DIFFUSERS}.train_frames=5"
    for fps, step in ((16.0, 1), (8.0, 2)):
        config = lab.loaded("sft", *VIDEO, *keys, f"{DIFFUSERS}.fps={fps}").config
        clip = module.load("sanarl.datasets.diffusers_dataset").train(config)[0]["media"]
        assert (clip.float() / 255).mean((1, 2, 3)).tolist() == pytest.approx(
            [i * step / 20 for i in range(5)], abs=0.02
        )


@honours(f"{DIFFUSERS}.image_to_video")
def test_clips_that_start_from_a_picture(labs):
    # The first frame is given, so that the loss is another; the rest of the machinery, tests/train/test_starts.py runs.
    lab = labs(5)
    losses = [
        lab.quick("sft-lora", f"{DIFFUSERS}.image_to_video={value}").metrics[0]["loss"] for value in ("false", "true")
    ]
    assert losses[0] != losses[1] == pytest.approx(losses[0], rel=0.3)


@honours(f"{DIFFUSERS}.vae_tiles")
def test_tiles_of_the_autoencoder(lab):
    # 288 pixels are more than a tile.
    tall = f"{DIFFUSERS}.inference_size=[288, 32]"
    losses = [
        lab.quick("sft-lora", tall, f"{DIFFUSERS}.vae_tiles={value}", module=lab.items).metrics[0]["loss"]
        for value in ("false", '"auto"', "true")
    ]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2] == pytest.approx(losses[0], rel=0.05)


@honours(f"{DIFFUSERS}.motion_score")
def test_motion_score(lab, seen):
    for keys, score in (((), False), ((f"{DIFFUSERS}.motion_score=7",), True)):
        seen.prompts.clear()
        lab.fresh("sft-lora", *keys)
        ends = {prompt.endswith(" motion score: 7.") for prompt, _ in seen.prompts if prompt}
        assert ends == {score}


@honours(f"{DIFFUSERS}.max_prompt_length")
def test_prompt_length(lab):
    for length in (4, 7):
        with lab.parts("sft-lora", f"{DIFFUSERS}.max_prompt_length={length}") as made:
            assert made.model.encode_prompts(["a red square and a blue circle"]).mask.sum() == length
    assert lab.quick("sft-lora", f"{DIFFUSERS}.max_prompt_length=4").metrics != lab.quick("sft-lora").metrics


@honours(f"{DIFFUSERS}.complex_human_instruction")
def test_instruction(lab, seen):
    plain = lab.fresh("sft-lora")
    assert {instruction is None for _, instruction in seen.prompts} == {True}
    seen.prompts.clear()
    told = lab.fresh("sft-lora", f"{DIFFUSERS}.complex_human_instruction=true")
    assert {instruction is None for prompt, instruction in seen.prompts if prompt} == {False}
    assert told.metrics[0]["loss"] != plain.metrics[0]["loss"]


@honours(f"{DIFFUSERS}.offload")
@pytest.mark.parametrize(("offload", "place"), [("true", "cpu"), ("false", "meta")])
def test_offloaded_parts_live_on_the_cpu(lab, offload, place):
    # torch's device "meta" stands for an accelerator; on the CPU itself there is nowhere to go.
    config = lab.loaded("sft", f"{DIFFUSERS}.offload={offload}").config
    pipeline = load_model(modelling.model_settings(config), torch.device("meta")).pipeline
    for part in (pipeline.vae, pipeline.text_encoder):
        assert {p.device.type for p in part.parameters()} == {place}
    assert {p.device.type for p in pipeline.transformer.parameters()} == {"meta"}


@honours(f"{DIFFUSERS}.inference_size")
def test_size(lab):
    both = f'{TASK}.reward_function=["{lab.probe("height")}", "{lab.probe("width")}"]'
    line = lab.quick("nft", both, f"{DIFFUSERS}.inference_size=[64, 32]").metrics[0]
    assert (line["reward/height"], line["reward/width"]) == (64, 32)


# ---- noise levels of fine-tuning: metric sigma is their mean over 6 samples


def sigma(lab, *overrides):
    """Mean noise level of a step without the shift, unless told."""
    return lab.quick("sft-lora", f"{DIFFUSERS}.train_flow_shift=1.0", *overrides).metrics[0]["sigma"]


@honours(f"{DIFFUSERS}.logit_mean", f"{DIFFUSERS}.logit_std", f"{DIFFUSERS}.train_flow_shift")
def test_noise_levels(lab):
    # By hand: sigmoid(mean + std z) has its middle at sigmoid(mean); the shift s maps 1/2 to s / (1 + s).
    narrow = f"{DIFFUSERS}.logit_std=1e-4"
    assert sigma(lab, narrow) == pytest.approx(0.5, abs=1e-3)
    assert abs(sigma(lab) - 0.5) > 1e-2
    assert sigma(lab, narrow, f"{DIFFUSERS}.logit_mean=1.0") == pytest.approx(0.731059, abs=1e-3)
    assert sigma(lab, narrow, f"{DIFFUSERS}.train_flow_shift=4.0") == pytest.approx(0.8, abs=1e-3)


@honours(f"{DIFFUSERS}.weighting_scheme")
def test_density_of_noise_levels(lab):
    found = {name: sigma(lab, f'{DIFFUSERS}.weighting_scheme="{name}"') for name in ("logit_normal", "mode", "uniform")}
    assert len(set(found.values())) == 3
    assert sigma(lab, f'{DIFFUSERS}.weighting_scheme="none"') == found["uniform"]


@honours(f"{DIFFUSERS}.caption_dropout")
def test_dropped_captions(lab, seen):
    for share, dropped in (("0.0", 0), ("0.999999", 6)):
        seen.prompts.clear()
        lab.fresh("sft-lora", f"{DIFFUSERS}.caption_dropout={share}", module=lab.items)  # each distinct prompt once
        assert len([prompt for prompt, _ in seen.prompts if prompt]) == 6 - dropped
        assert ("" in dict(seen.prompts)) == bool(dropped)
    with pytest.raises(ConfigError, match=r"caption_dropout: found 0\.5; accepted 0"):
        lab.loaded("nft", f"{DIFFUSERS}.caption_dropout=0.5")


# ---- DiffusionNFT


@honours(f"{DIFFUSERS}.timesteps_fraction")
@pytest.mark.parametrize(("fraction", "kept"), [(1.0, 3), (0.7, 2), (0.1, 1)])
def test_share_of_noise_levels(lab, seen, fraction, kept):
    # By hand: of 3 noise levels; two optimiser steps of 6 samples in mini-batches of 6.
    lab.fresh("nft", f"{DIFFUSERS}.timesteps_fraction={fraction}", f"{TASK}.mini_batch=6")
    assert seen.sizes(trained=True) == [6] * 2 * kept


@honours(f"{DIFFUSERS}.nft_beta")
def test_strength_of_the_implicit_policies(lab):
    # At the old policy both sides are the same, and their sum is divided by beta.
    one, half = (lab.quick("nft", *lab.plain, f"{DIFFUSERS}.nft_beta={b}").metrics[0] for b in (1.0, 0.5))
    assert half["policy_loss"] == pytest.approx(2 * one["policy_loss"], rel=1e-6)
    assert half["positive_loss"] == pytest.approx(one["positive_loss"], rel=1e-6)


COPY = f"{DIFFUSERS}.weight_copy_decay_"


@honours(f"{COPY}type", f"{COPY}value", f"{COPY}steps")
@pytest.mark.parametrize(
    ("overrides", "updates", "stays"),
    [
        ([f"{COPY}type=0"], 100, 0.0),
        ([f"{COPY}type=1"], 100, 0.1),
        ([f"{COPY}type=2"], 100, 0.1875),
        ([f"{COPY}type=3", f"{COPY}value=0.8", f"{COPY}steps=200"], 100, 0.4),
        ([f"{COPY}type=3", f"{COPY}value=0.6", f"{COPY}steps=200"], 100, 0.3),
        ([f"{COPY}type=3", f"{COPY}value=0.8", f"{COPY}steps=400"], 100, 0.2),
    ],
)
def test_how_old_follows_the_learner(lab, overrides, updates, stays):
    # By hand, from the formulas in docs/config.md: what stays of the old values when the learner has moved by 1.
    with lab.parts("nft", *overrides) as made, torch.no_grad():
        for master in made.policy.masters:
            master += 1
        before = [value.clone() for value in made.policy.sets["old"]]
        forward.after_rollout(made.policy, updates, settings.rl_setup(made.config, 1.0).settings)
        for was, now in zip(before, made.policy.sets["old"], strict=True):
            torch.testing.assert_close(now - was, torch.full_like(was, 1 - stays), rtol=0, atol=1e-6)


@honours(f"{COPY}type")
def test_old_follows_in_a_run(lab):
    copied_, followed = (lab.quick("nft", f"{COPY}type={kind}").state(1) for kind in (0, 1))
    for state, same in ((copied_, True), (followed, False)):
        old = [path for path in state if path.startswith("/policy/sets/old/") and "lora_B" in path]
        assert all(torch.equal(state[p], state[p.replace("/old/", "/learner/")]) == same for p in old)
    with pytest.raises(ConfigError, match=r"weight_copy_decay_value: found 0\.5; only with"):
        lab.loaded("nft", f"{COPY}value=0.5")
