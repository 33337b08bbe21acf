"""Clips that start from a picture, against SanaImageToVideoPipeline on small random models."""

from dataclasses import replace

import pytest
import torch
from diffusers import SanaImageToVideoPipeline

from sanarl.algorithms import sft
from sanarl.errors import UserError
from sanarl.maths import draw
from sanarl.models.load import load_model
from sanarl.rollout.generate import Sampler, generate

PROMPTS = ["a red circle", "two blue squares"]
STEPS = 4


def picture(seed=5):
    return torch.rand(1, 1, 3, 32, 64, generator=torch.Generator().manual_seed(seed))


def stock(model, noise, guidance, **named):
    """What diffusers makes of the same parts, noise and picture."""
    pipeline = SanaImageToVideoPipeline(**model.pipeline.components)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline(
        picture()[0],
        PROMPTS,
        height=32,
        width=64,
        frames=9,
        latents=noise.clone(),
        num_inference_steps=STEPS,
        sigmas=[1 - i / STEPS for i in range(STEPS)],
        guidance_scale=guidance,
        use_resolution_binning=False,
        max_sequence_length=12,
        complex_human_instruction=None,
        **named,
    )[0]


@pytest.mark.parametrize("guidance", [1.0, 4.5])
@pytest.mark.parametrize("options", [{}, {"learned_sigma": True, "flow_shift": 3.0}])
def test_own_rollout_is_the_stock_pipelines(make_sana, make_policy, guidance, options):
    # Reference: SanaImageToVideoPipeline from the same noise and picture.
    model = make_sana(frames=9, **options)
    policy, ids = make_policy(model=model), torch.arange(2)
    sampler = Sampler(STEPS, guidance, "euler", model.flow_shift, mini_batch=2)
    first = picture().expand(2, -1, -1, -1, -1)
    ((_, rollout, media),) = generate(policy, PROMPTS, ids, ids, sampler, (3, "test"), first)
    noise = draw.normal(ids, model.latent_shape, 3, "test", "noise")
    theirs = stock(model, noise, guidance, output_type="latent")
    torch.testing.assert_close(rollout.latents, theirs, rtol=1e-5, atol=3e-5 * guidance)
    shown = stock(model, noise, guidance, output_type="np")
    assert abs(media.permute(0, 1, 3, 4, 2).numpy() - shown).max() < 1e-4 * guidance
    # Given, whatever the solver: the first latent frame is the picture's.
    torch.testing.assert_close(rollout.latents[:, :, :1], model.encode_media(first, 2), rtol=0, atol=1e-5)
    (_, other, _) = next(generate(policy, PROMPTS, ids, ids, replace(sampler, solver="dpm2"), (3, "test"), first))
    torch.testing.assert_close(other.latents[:, :, :1], model.encode_media(first, 2), rtol=0, atol=1e-5)


@torch.no_grad()
def test_noise_in_place_of_the_given_frame_is_not_seen(make_sana):
    model = make_sana(frames=9)
    x = torch.randn(2, *model.latent_shape, generator=torch.Generator().manual_seed(0))
    other, sigma = x.clone(), torch.tensor([0.3, 0.9])
    other[:, :, :1] += 7
    cond = replace(model.encode_prompts(PROMPTS), first=model.encode_media(picture().expand(2, -1, -1, -1, -1), 2))
    one, two = model.velocity(x, sigma, cond), model.velocity(other, sigma, cond)
    assert torch.equal(one[:, :, 1:], two[:, :, 1:])
    away = one - model.velocity(x, sigma, replace(cond, first=cond.first + 1))
    assert away[:, :, 1:].abs().max() > 1e-3  # and the given frame is


def test_the_loss_of_the_other_frames_written_out(make_policy):
    # Reference: the transformer called as SanaImageToVideoPipeline calls it, the mean over what is not given.
    policy = make_policy(frames=9)
    model, ids, key = policy.model, torch.arange(2), (3, 1)
    clips = torch.rand(2, 9, 3, 32, 64, generator=torch.Generator().manual_seed(0))
    x0 = model.encode_media(clips, 2)
    torch.testing.assert_close(x0[:, :, :1], model.encode_media(clips[:, :1], 2), rtol=0, atol=1e-5)  # causal
    noise = draw.normal(ids, x0.shape[1:], *key, "noise")
    t = torch.sigmoid(draw.normal(ids, (), *key, "sigma").double())
    sigma = (3 * t / (1 + 2 * t)).float()
    x_t = (1 - sigma.view(-1, 1, 1, 1, 1)) * x0 + sigma.view(-1, 1, 1, 1, 1) * noise
    x_t[:, :, :1] = x0[:, :, :1]
    mask = torch.zeros(2, 1, 3, 2, 4)
    mask[:, :, 0] = 1
    cond = model.encode_prompts(PROMPTS)
    with torch.no_grad():
        v = model.transformer(
            x_t,
            encoder_hidden_states=cond.embeds,
            encoder_attention_mask=cond.mask,
            timestep=(1000 * sigma).view(-1, 1, 1, 1, 1) * (1 - mask),
            return_dict=False,
        )[0]
    expected = ((v - (noise - x0))[:, :, 1:] ** 2).mean().item()
    settings = sft.Settings(2, "logit_normal", 0.0, 1.0, 3.0, image_to_video=True)
    (term,) = sft.terms(policy, list(x0), PROMPTS, ids, settings, key)
    assert term.loss.item() == pytest.approx(expected, rel=1e-5)
    term.loss.backward()
    policy.collect_gradients()
    assert max(master.grad.abs().max() for master in policy.masters) > 0


def test_pipelines_and_the_key_must_agree(saved_pipeline, tmp_path):
    from sanarl.models.load import ModelSettings

    def settings(path, image_to_video):
        f32 = torch.float32
        return ModelSettings(
            str(path), None, f32, f32, (32, 64), "video", 9, 12, False, None, False, "auto", False, image_to_video
        )

    device = torch.device("cpu")
    model = load_model(settings(saved_pipeline(5), True), device)  # a SanaVideoPipeline has the parts
    assert isinstance(model.pipeline, SanaImageToVideoPipeline)
    model.pipeline.save_pretrained(tmp_path)
    assert isinstance(load_model(settings(tmp_path, True), device).pipeline, SanaImageToVideoPipeline)
    with pytest.raises(UserError, match=r"image_to_video: false, but .* is a SanaImageToVideoPipeline"):
        load_model(settings(tmp_path, False), device)
