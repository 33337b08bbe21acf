"""What ``FlowModel`` promises, over every family. References: the stock pipelines, and the parts called by hand."""

import pytest
import torch

from sanarl.errors import UserError
from sanarl.maths import draw
from sanarl.models.adapter import LoraSettings, add_adapter
from sanarl.models.flops import ForwardFlops
from sanarl.models.flux import packed, unpacked
from sanarl.models.policy import Policy
from sanarl.rollout.generate import Sampler, generate
from sanarl.types import Cond

FAMILIES = ("sana", "sana-video", "sd3", "flux")
MASKED = ("sana", "sana-video")
PROMPTS = ["a red circle", "two blue squares", "a red circle left of a blue square"]
STEPS = 4


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def model(family, make_model):
    return make_model(family)


def inputs(model, n, seed=0):
    x = torch.randn(n, *model.latent_shape, generator=torch.Generator().manual_seed(seed))
    return x, torch.linspace(0.1, 1.0, n)


def policy_of(model, kept_sets=True):
    settings = LoraSettings(r=2, alpha=4.0, target_modules=["to_q", "to_v", "to_out.0"])
    return Policy(model, add_adapter(model.transformer, settings, seed=1), torch.float32, kept_sets)


def stock(family, model, noise, guidance, true_guidance=1.0):
    """What diffusers makes of the same parts and noise, at sigmas 1, 1 - 1/n, ..., 1/n before the shift."""
    told = {
        "height": 32,
        "width": 64,
        "num_inference_steps": STEPS,
        "sigmas": [1 - i / STEPS for i in range(STEPS)],
        "guidance_scale": guidance,
        "output_type": "latent",
        "max_sequence_length": 24,
        "latents": packed(noise) if family == "flux" else noise,
    }
    if family in MASKED:
        told |= {"use_resolution_binning": False, "complex_human_instruction": None}
        told |= {"frames": 5} if family == "sana-video" else {}
    if true_guidance > 1:
        told |= {"true_cfg_scale": true_guidance, "negative_prompt": [""] * len(PROMPTS)}
    latents = model.pipeline(PROMPTS, **told)[0]
    return unpacked(latents, *noise.shape[-2:]) if family == "flux" else latents


def ours(model, guidance):
    """Our rollout, and the noise that it started from."""
    ids = torch.arange(len(PROMPTS))
    sampler = Sampler(STEPS, guidance, "euler", model.flow_shift, mini_batch=2)
    found = list(generate(policy_of(model), PROMPTS, ids, ids, sampler, (3, "test")))
    return torch.cat([r.latents for _, r, _ in found]), draw.normal(ids, model.latent_shape, 3, "test", "noise")


@pytest.mark.parametrize("guidance", [1.0, 4.5])
def test_own_rollout_is_the_stock_pipelines(family, make_model, guidance):
    # It computes both passes of guidance in one batch, hence the tolerance. FLUX.1 has guidance as an input.
    model = make_model(family, guidance_scale=guidance)
    latents, noise = ours(model, guidance)
    theirs = stock(family, model, noise, guidance)
    torch.testing.assert_close(latents, theirs, rtol=1e-5, atol=2e-5 * guidance)
    assert (theirs - noise).abs().max() > 0.1


def test_guidance_reaches_every_family(family, make_model):
    # Reference: none; guided and unguided samples differ by more than any rounding.
    (free, _), (guided, _) = (ours(make_model(family, guidance_scale=g), g) for g in (1.0, 4.5))
    assert (free - guided).abs().max() > 1e-3


@pytest.mark.parametrize("guidance", [1.0, 4.5])
def test_flux_without_guidance_as_an_input_is_guided_by_two_passes(make_model, guidance):
    # Reference: FluxPipeline's true_cfg_scale with an empty negative prompt, as FLUX.1-schnell would need it.
    model = make_model("flux", guidance_scale=guidance, guidance_embeds=False)
    latents, noise = ours(model, guidance)
    theirs = stock("flux", model, noise, 1.0, true_guidance=guidance)
    torch.testing.assert_close(latents, theirs, rtol=1e-5, atol=2e-5 * guidance)


def test_sd3_without_its_t5_is_the_stock_pipelines(make_model):
    model = make_model("sd3", encoders=(True, True, False))
    latents, noise = ours(model, 1.0)
    torch.testing.assert_close(latents, stock("sd3", model, noise, 1.0), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("encoders", [(a, b, c) for a in (True, False) for b in (True, False) for c in (True, False)])
def test_absent_text_encoders_of_sd3_leave_zeros_in_their_place(make_model, encoders):
    # Reference: the same model with all encoders, with their tokens and pooled embeddings set to zero by hand.
    whole = make_model("sd3").encode_prompts([*PROMPTS, ""])
    found = make_model("sd3", encoders=encoders).encode_prompts([*PROMPTS, ""])
    embeds, pooled = whole.embeds.clone(), whole.pooled.clone()
    places = ((slice(0, 77), slice(0, 8)), (slice(0, 77), slice(8, 20)), (slice(77, None), slice(None)))
    for there, (tokens, width) in zip(encoders, places, strict=True):
        embeds[:, tokens, width] *= float(there)
    pooled[:, :8] *= float(encoders[0])
    pooled[:, 8:] *= float(encoders[1])
    torch.testing.assert_close(found.embeds, embeds, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.pooled, pooled, rtol=0, atol=1e-6)


def test_flux_needs_both_text_encoders(random_family):
    from sanarl.models.base import Use
    from sanarl.models.flux import Flux

    pipeline = random_family("flux")
    pipeline.register_modules(text_encoder_2=None)
    with pytest.raises(UserError, match="has no text_encoder_2"):
        Flux(pipeline, Use((32, 64), torch.device("cpu")))


@torch.no_grad()
def test_padding_reaches_the_velocity_where_the_family_attends_to_it_and_nowhere_else(family, model):
    # Reference: the velocity with the embeddings as encoded; masks say which tokens count.
    cond = model.encode_prompts(PROMPTS)
    padding = cond.mask == 0
    assert bool(padding.any()) == (family in MASKED)
    x, sigma = inputs(model, len(PROMPTS))
    noise = torch.randn(cond.embeds.shape, generator=torch.Generator().manual_seed(1))
    other = Cond(torch.where(padding[..., None], 3 * noise, cond.embeds), cond.mask, pooled=cond.pooled)
    assert (model.velocity(x, sigma, other) - model.velocity(x, sigma, cond)).abs().max() < 1e-6
    last = cond.embeds.clone()
    last[:, -1] = 3 * noise[:, -1]
    moved = (model.velocity(x, sigma, Cond(last, cond.mask, pooled=cond.pooled)) - model.velocity(x, sigma, cond)).abs()
    assert (moved.amax() > 1e-4) == (family not in MASKED)


@torch.no_grad()
def test_pooled_embeddings_reach_the_velocity(make_model):
    for family in ("sd3", "flux"):
        model = make_model(family)
        cond, (x, sigma) = model.encode_prompts(PROMPTS[:2]), inputs(model, 2)
        swapped = Cond(cond.embeds, cond.mask, pooled=cond.pooled.flip(0))
        assert (model.velocity(x, sigma, swapped) - model.velocity(x, sigma, cond)).abs().max() > 1e-3


@torch.no_grad()
def test_a_sample_does_not_depend_on_its_batch(model):
    # Reference: every sample alone.
    x, sigma = inputs(model, 3)
    cond = model.encode_prompts(PROMPTS)
    whole = model.velocity(x, sigma, cond)
    for row in range(3):
        rows = torch.tensor([row])
        torch.testing.assert_close(model.velocity(x[rows], sigma[rows], cond[rows])[0], whole[row], rtol=0, atol=2e-6)


def test_the_three_policies_differ_after_an_update_and_only_the_adapter_learns(model):
    policy = policy_of(model)
    x, sigma = inputs(model, 2)
    cond = model.encode_prompts(PROMPTS[:2])
    with torch.no_grad():
        start = policy.velocity(x, sigma, cond)
    for _ in range(2):  # at first B is zero, and A has no gradient
        policy.velocity(x, sigma, cond).square().mean().backward()
        policy.collect_gradients()
        assert all("lora" in n for n, p in model.transformer.named_parameters() if p.grad is not None)
        with torch.no_grad():
            for master in policy.masters:
                master -= 0.5 * master.grad / (master.grad.norm() + 1e-9)
                master.grad = None
        policy.learner_moved()
        policy.publish()
    policy.blend_old(0.5)
    with torch.no_grad():
        learner = policy.velocity(x, sigma, cond)
        with policy.old():
            old = policy.velocity(x, sigma, cond)
        with policy.reference():
            reference = policy.velocity(x, sigma, cond)
    torch.testing.assert_close(reference, start, rtol=0, atol=0)
    assert (learner - old).abs().max() > 1e-5 < (old - reference).abs().max()


def test_velocity_keeps_the_latents_type_and_computes_in_the_transformers(family, make_model):
    # Reference: float32; bfloat16 keeps about three decimal digits.
    full, half = make_model(family), make_model(family, dtype=torch.bfloat16)
    x, sigma = inputs(full, 3)
    with torch.no_grad():
        exact = full.velocity(x, sigma, full.encode_prompts(PROMPTS))
        found = half.velocity(x, sigma, half.encode_prompts(PROMPTS))
    assert found.dtype == x.dtype == torch.float32
    assert not torch.equal(found, exact)
    torch.testing.assert_close(found, exact, rtol=0.1, atol=0.1 * exact.std().item())


@pytest.mark.parametrize("offload", [False, True])
def test_prompts_are_encoded_each_on_its_own(family, make_model, offload):
    # Reference: every prompt encoded alone; rows come as p0, p0, p1, p1, embeddings, masks and pooled alike.
    model = make_model(family, offload=offload)
    prompts = [PROMPTS[0], PROMPTS[0], PROMPTS[2], PROMPTS[2], "", PROMPTS[0]]
    cond = model.encode_prompts(prompts)
    assert (cond.pooled is None) == (family in MASKED)
    for row, prompt in enumerate(prompts):
        alone = model.encode_prompts([prompt])
        keep = alone.mask[0].bool()
        assert torch.equal(cond.mask[row], alone.mask[0])
        torch.testing.assert_close(cond.embeds[row][keep], alone.embeds[0][keep], rtol=0, atol=1e-5)
        if cond.pooled is not None:
            torch.testing.assert_close(cond.pooled[row], alone.pooled[0], rtol=0, atol=1e-5)
    none = model.encode_prompts([])
    assert (len(none.embeds), len(none.mask)) == (0, 0)


@pytest.mark.parametrize("family", ["sd3", "flux"])
def test_encoding_and_decoding_use_the_autoencoders_shift_and_scale(make_model, family):
    # Reference: the autoencoder called by hand on pixels in [-1, 1]; its mode less the shift, times the scale.
    model = make_model(family)
    vae = model.pipeline.vae
    media = torch.rand(3, 1, 3, 32, 64, generator=torch.Generator().manual_seed(0))
    latents = model.encode_media(media, mini_batch=2)
    assert latents.shape == (3, *model.latent_shape) == (3, 4, 4, 8)
    with torch.no_grad():
        by_hand = vae.encode(2 * media[:, 0] - 1).latent_dist.mode()
        pixels = vae.decode(by_hand).sample
    torch.testing.assert_close(latents, (by_hand - 0.0609) * 1.5305, rtol=0, atol=1e-5)
    torch.testing.assert_close(model.decode(latents)[:, 0], (pixels / 2 + 0.5).clamp(0, 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["sd3", "flux"])
@pytest.mark.parametrize(
    ("size", "said"), [((36, 32), "8 pixels"), ((40, 32), "patches of 2"), ((32, 160), "8 x 8|16 x 16")]
)
def test_sizes_that_do_not_fit_are_refused(make_model, family, size, said):
    if family == "flux" and size == (32, 160):
        assert make_model(family, size=size).latent_shape == (4, 4, 20)  # its places have no end
        return
    with pytest.raises(UserError, match=rf"inference_size: found \[\d+, \d+\].* ({said})"):
        make_model(family, size=size)


@pytest.mark.parametrize("family", ["sd3", "flux"])
def test_what_only_sana_has_is_refused(random_family, family):
    from sanarl.models.base import Use
    from sanarl.models.families import FAMILIES as TABLE

    pipeline = random_family(family)
    wrap, cpu = TABLE[type(pipeline).__name__].wrapper(), torch.device("cpu")
    with pytest.raises(UserError, match=r"complex_human_instruction: found true.*\n.*motion_score: found 30"):
        wrap(pipeline, Use((32, 64), cpu, complex_human_instruction=True, motion_score=30))
    with pytest.raises(UserError, match=r"max_prompt_length: found 600; .* at most 512"):
        wrap(pipeline, Use((32, 64), cpu, max_prompt_length=600))


def test_nothing_of_a_fresh_model_is_trainable_and_all_of_it_is_in_eval_mode(model):
    for name, part in model.pipeline.components.items():
        if isinstance(part, torch.nn.Module):
            assert not part.training, name
            assert not any(p.requires_grad for p in part.parameters()), name


def test_operations_are_counted_from_shapes(model):
    # Reference: torch's counter over a real pass of the same shapes.
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    x, sigma = inputs(model, 1)
    cond, blank = model.encode_prompts(PROMPTS[:1]), model.blank(model.text_tokens)
    shapes = [{n: v.shape for n, v in vars(c).items() if isinstance(v, torch.Tensor)} for c in (cond, blank)]
    assert shapes[0] == shapes[1]
    found = ForwardFlops(model)(model.latent_shape, model.text_tokens)
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.velocity(x, sigma, cond)
    assert sum(found) == counter.get_total_flops() > 0
    assert next(model.transformer.parameters()).device.type == "cpu"


def test_packing_is_fluxs():
    # Reference: FluxPipeline's own packing, unpacking and image ids.
    from diffusers import FluxPipeline

    from sanarl.models.flux import places

    x = torch.randn(2, 4, 6, 8, generator=torch.Generator().manual_seed(0))
    tokens = FluxPipeline._pack_latents(x, 2, 4, 6, 8)
    assert torch.equal(packed(x), tokens)
    assert torch.equal(unpacked(tokens, 6, 8), x)
    ids = FluxPipeline._prepare_latent_image_ids(1, 3, 4, torch.device("cpu"), torch.float32)
    assert torch.equal(places(6, 8, torch.device("cpu")), ids)


@pytest.mark.parametrize("kind", ["exponential", "linear"])
@pytest.mark.parametrize("tokens", [256, 1024, 4096, 10_000])
def test_the_shift_grows_with_the_tokens_as_the_schedulers(kind, tokens):
    # Reference: FlowMatchEulerDiscreteScheduler's sigmas under the mu of FluxPipeline.
    from diffusers import FlowMatchEulerDiscreteScheduler
    from diffusers.pipelines.flux.pipeline_flux import calculate_shift

    from sanarl.maths.flow import schedule
    from sanarl.models.shift import flow_shift

    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True, time_shift_type=kind)
    scheduler.set_timesteps(sigmas=[1 - i / 5 for i in range(5)], mu=calculate_shift(tokens))
    found = schedule(5, flow_shift(scheduler.config, tokens))
    torch.testing.assert_close(found.float(), scheduler.sigmas, rtol=0, atol=1e-6)
