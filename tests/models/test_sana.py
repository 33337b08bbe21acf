"""One contract for every variant of the family: what ``FlowModel`` promises, against the stock pipeline."""

import pytest
import torch

from sanarl.errors import UserError
from sanarl.maths import draw
from sanarl.models.vae import codec
from sanarl.rollout.generate import Sampler, generate
from sanarl.types import Cond

VARIANTS = {
    "plain": {},
    "shift": {"flow_shift": 3.0},
    "learned sigma": {"learned_sigma": True},
    "timestep scale": {"timestep_scale": 0.001},
    "video": {"frames": 9},
    "video, learned sigma": {"frames": 5, "learned_sigma": True, "flow_shift": 3.0},
}
PROMPTS = ["a red circle", "two blue squares", "a red circle left of a blue square"]


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def model(request, make_sana):
    return make_sana(**request.param)


def inputs(model, n, seed=0):
    x = torch.randn(n, *model.latent_shape, generator=torch.Generator().manual_seed(seed))
    return x, torch.linspace(0.1, 1.0, n)


@torch.no_grad()
def padding_leak(model):
    """Largest change of the velocity when embeddings at padding places are replaced by other numbers."""
    cond = model.encode_prompts(PROMPTS)
    assert (cond.mask == 0).any(1).all(), "every prompt must have padding for this check to see anything"
    x, sigma = inputs(model, len(PROMPTS))
    noise = torch.randn(cond.embeds.shape, generator=torch.Generator().manual_seed(1))
    other = torch.where(cond.mask[..., None].bool(), cond.embeds, 3 * noise)
    return (model.velocity(x, sigma, Cond(other, cond.mask)) - model.velocity(x, sigma, cond)).abs().max().item()


def test_padding_never_reaches_the_velocity(model):
    # Reference: the velocity with the embeddings as encoded.
    assert padding_leak(model) < 1e-6


def test_defect_wrong_mask_keyword_is_caught(model, monkeypatch):
    # attention_mask= is accepted by the transformer and ignored.
    forward = model.transformer.forward
    monkeypatch.setattr(
        model.transformer,
        "forward",
        lambda *args, encoder_attention_mask, **others: forward(*args, attention_mask=encoder_attention_mask, **others),
    )
    assert padding_leak(model) > 1e-3


@torch.no_grad()
def test_prompts_reach_the_velocity(model):
    x, sigma = inputs(model, 1)
    a, b = (model.velocity(x, sigma, model.encode_prompts([p])) for p in PROMPTS[:2])
    assert (a - b).abs().max() > 1e-3


@pytest.mark.parametrize("guidance", [1.0, 4.5])
def test_own_rollout_is_the_stock_pipelines(model, make_policy, guidance):
    # Reference: SanaPipeline from the same latents, sigmas = 1, 1 - 1/n, ..., 1/n. It computes both passes of guidance
    # in one batch, hence the tolerance.
    policy, steps, ids = make_policy(model=model), 5, torch.arange(3)
    sampler = Sampler(steps, guidance, "euler", model.flow_shift, mini_batch=2)
    found = list(generate(policy, PROMPTS, ids, ids, sampler, (3, "test")))
    noise = draw.normal(ids, model.latent_shape, 3, "test", "noise")
    height, width = (8 * edge for edge in model.latent_shape[-2:])
    frames = {"frames": 4 * model.latent_shape[1] - 3} if len(model.latent_shape) == 4 else {}
    theirs = model.pipeline(
        PROMPTS,
        **frames,
        height=height,
        width=width,
        latents=noise,
        num_inference_steps=steps,
        sigmas=[1 - i / steps for i in range(steps)],
        guidance_scale=guidance,
        output_type="latent",
        use_resolution_binning=False,
        max_sequence_length=12,
        complex_human_instruction=None,
    )[0]
    ours = torch.cat([rollout.latents for _, rollout, _ in found])
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-5 * guidance)
    assert (theirs - noise).abs().max() > 0.1


@torch.no_grad()
def test_a_sample_does_not_depend_on_its_batch(model):
    # Reference: every sample alone.
    x, sigma = inputs(model, 3)
    cond = model.encode_prompts(PROMPTS)
    whole = model.velocity(x, sigma, cond)
    for row in range(3):
        rows = torch.tensor([row])
        torch.testing.assert_close(model.velocity(x[rows], sigma[rows], cond[rows])[0], whole[row], rtol=0, atol=1e-6)


def test_gradients_reach_the_latents_and_only_what_is_trainable(make_policy):
    policy = make_policy()
    x, sigma = inputs(policy.model, 2)
    x.requires_grad_()
    policy.velocity(x, sigma, policy.model.encode_prompts(PROMPTS[:2])).square().sum().backward()
    assert x.grad.abs().sum() > 0
    assert all("lora" in n for n, p in policy.model.transformer.named_parameters() if p.grad is not None)


def test_velocity_keeps_the_latents_type_and_computes_in_the_transformers(make_sana):
    # Reference: float32; bfloat16 keeps about three decimal digits.
    x, sigma = inputs(make_sana(), 3)
    full, half = make_sana(), make_sana(dtype=torch.bfloat16)
    with torch.no_grad():
        exact = full.velocity(x, sigma, full.encode_prompts(PROMPTS))
        found = half.velocity(x, sigma, half.encode_prompts(PROMPTS))
    assert found.dtype == x.dtype == torch.float32
    assert not torch.equal(found, exact)
    torch.testing.assert_close(found, exact, rtol=0.1, atol=0.1 * exact.std().item())


@pytest.mark.parametrize("instruction", [False, True])
def test_prompts_are_encoded_each_on_its_own(make_sana, instruction):
    # Reference: every prompt encoded alone; rows come as p0, p0, p1, p1, embeddings and masks alike.
    model = make_sana(instruction=instruction)
    prompts = [PROMPTS[0], PROMPTS[0], PROMPTS[2], PROMPTS[2], "", PROMPTS[0]]
    cond = model.encode_prompts(prompts)
    assert cond.embeds.shape[:2] == cond.mask.shape == (6, 12)
    for row, prompt in enumerate(prompts):
        alone = model.encode_prompts([prompt])
        assert torch.equal(cond.mask[row], alone.mask[0])
        keep = alone.mask[0].bool()
        torch.testing.assert_close(cond.embeds[row][keep], alone.embeds[0][keep], rtol=0, atol=1e-5)
    assert cond.mask[0].sum() < cond.mask[2].sum()


def test_no_prompts_are_no_rows(make_sana):
    # A rank may have no rows of a step.
    cond = make_sana().encode_prompts([])
    assert (len(cond.embeds), len(cond.mask)) == (0, 0)


@pytest.mark.parametrize("instruction", [False, True])
def test_the_instruction_is_put_before_prompts_only_when_asked_for(make_sana, instruction):
    # Reference: the embeddings of a model that was not asked to; the empty prompt of guidance never carries it.
    model = make_sana(instruction=instruction)
    plain = make_sana().encode_prompts([PROMPTS[0]])
    same = torch.equal(model.encode_prompts([PROMPTS[0]]).embeds, plain.embeds)
    assert same is not instruction
    assert torch.equal(model.encode_prompts([""]).embeds, make_sana().encode_prompts([""]).embeds)


def test_encoding_and_decoding_use_the_autoencoders_scale(make_sana):
    # Reference: the autoencoder called by hand on pixels in [-1, 1], times its scaling factor.
    model = make_sana()
    vae = model.pipeline.vae
    vae.register_to_config(scaling_factor=0.4)
    media = torch.rand(2, 1, 3, 32, 64, generator=torch.Generator().manual_seed(0))
    latents = model.encode_media(media, mini_batch=2)
    assert latents.shape == (2, *model.latent_shape) == (2, 4, 4, 8)
    with torch.no_grad():
        by_hand = vae.encode(2 * media[:, 0] - 1).latent
        pixels = vae.decode(by_hand).sample
    torch.testing.assert_close(latents, by_hand * 0.4)
    decoded = model.decode(latents)
    assert decoded.shape == media.shape
    assert decoded.dtype == torch.float32
    torch.testing.assert_close(decoded[:, 0], (pixels / 2 + 0.5).clamp(0, 1), rtol=0, atol=1e-5)
    assert decoded.min() >= 0
    assert decoded.max() <= 1


@pytest.mark.parametrize("size", [(36, 32), (32, 36), (4, 32)])
def test_sizes_that_the_autoencoder_cannot_make_are_refused(make_sana, size):
    with pytest.raises(UserError, match=r"inference_size: found \[\d+, \d+\].* 8 pixels"):
        make_sana(size=size)


def test_nothing_of_a_fresh_model_is_trainable_and_all_of_it_is_in_eval_mode(model):
    for part in (model.transformer, model.pipeline.vae, model.pipeline.text_encoder):
        assert not part.training
        assert not any(p.requires_grad for p in part.parameters())


def test_clips_are_encoded_and_decoded_with_the_autoencoders_mean_and_deviation(make_sana):
    # Reference: the autoencoder called by hand on pixels in [-1, 1]; latents less their mean, over their deviation.
    model = make_sana(frames=9)
    vae = model.pipeline.vae
    media = torch.rand(2, 9, 3, 32, 64, generator=torch.Generator().manual_seed(0))
    latents = model.encode_media(media, mini_batch=1)
    assert latents.shape == (2, *model.latent_shape) == (2, 4, 3, 4, 8)
    mean, std = (torch.tensor(x).view(1, 4, 1, 1, 1) for x in (vae.config.latents_mean, vae.config.latents_std))
    with torch.no_grad():
        by_hand = (vae.encode((2 * media - 1).transpose(1, 2)).latent_dist.mode() - mean) / std
        pixels = vae.decode(by_hand * std + mean).sample.transpose(1, 2)
    torch.testing.assert_close(latents, by_hand, rtol=0, atol=1e-5)
    decoded = model.decode(latents)
    assert decoded.shape == media.shape
    torch.testing.assert_close(decoded, (pixels / 2 + 0.5).clamp(0, 1), rtol=0, atol=1e-4)


def test_what_the_decoder_shows_is_what_the_stock_video_pipeline_shows(make_sana):
    # Reference: SanaVideoPipeline's own decoding of the same latents, to 8 bits.
    model = make_sana(frames=5)
    noise = torch.randn(1, *model.latent_shape, generator=torch.Generator().manual_seed(2))
    settings = {
        "height": 32,
        "width": 64,
        "frames": 5,
        "num_inference_steps": 1,
        "sigmas": [1.0],
        "guidance_scale": 1.0,
    }
    settings |= {"use_resolution_binning": False, "max_sequence_length": 12, "complex_human_instruction": None}
    latents = model.pipeline(PROMPTS[0], latents=noise, output_type="latent", **settings)[0]
    shown = model.pipeline(PROMPTS[0], latents=noise, output_type="np", **settings)[0]
    ours = model.decode(latents)[0].permute(0, 2, 3, 1).numpy()
    assert abs(ours - shown[0]).max() < 1e-5


@pytest.mark.parametrize("count", [0, 4, 10])
def test_frames_that_do_not_fit_are_refused(make_sana, count):
    with pytest.raises(UserError, match=f"inference_frames: found {count}; .* multiple of 4"):
        make_sana(frames=count)


def test_a_picture_model_makes_no_clips(make_sana):
    with pytest.raises(UserError, match="1 frame; found 5"):
        codec(make_sana().pipeline.vae).latent_shape(8, 5, (32, 64))


def test_the_motion_score_ends_every_prompt_but_the_empty_one(make_sana):
    # Reference: the same words written into the prompt.
    scored, plain = make_sana(frames=5, motion_score=30), make_sana(frames=5)
    found = scored.encode_prompts([PROMPTS[0], ""])
    wanted = plain.encode_prompts([f"{PROMPTS[0]} motion score: 30.", ""])
    assert torch.equal(found.mask, wanted.mask)
    torch.testing.assert_close(found.embeds, wanted.embeds, rtol=0, atol=1e-6)
