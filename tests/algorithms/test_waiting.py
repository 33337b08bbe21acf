"""The host never waits for the device inside the inner loop.

Everything that is trained lies on torch's meta device, which has no values: whoever asks for one (item, cpu, a truth
value, indices where something is true) fails. Copies to it are seen by a dispatch mode, and must not block.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sanarl.algorithms import flow_grpo, nft, sft
from sanarl.maths.sde import Dynamics
from sanarl.models import tiny
from sanarl.models.adapter import LoraSettings, add_adapter
from sanarl.models.base import Use
from sanarl.models.fused import fuse
from sanarl.models.policy import Policy
from sanarl.models.sana import Sana
from sanarl.runtime.step import back_up
from sanarl.types import Cond, Path, Rollout

META = torch.device("meta")
ROWS = 5


class Copies(TorchDispatchMode):
    """Counts copies from the host, and fails at one that the host waits for."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default:
            to, source = kwargs.get("device"), args[0].device
            assert source == META or to is None or torch.device(to) != META or kwargs.get("non_blocking"), "blocks"
            self.seen += source != META and to is not None and torch.device(to) == META
        return func(*args, **kwargs)


@pytest.fixture(params=[False, True], ids=["plain", "fused"])
def policy(request):
    pipeline = tiny.random_pipeline()
    width = pipeline.transformer.config.caption_channels
    model = Sana(pipeline, Use((32, 32), torch.device("cpu"), max_prompt_length=12))
    start = add_adapter(model.transformer, LoraSettings(r=4, alpha=4, target_modules=["to_q", "to_k", "to_v"]), 0)
    if request.param:
        fuse(model.transformer)
    model.transformer.to(META)
    model.device = META
    model.encode_prompts = lambda prompts: Cond(
        torch.zeros(len(prompts), 12, width, device=META), torch.ones(len(prompts), 12, device=META), None, prompts
    )
    found = Policy(model, {n: v.to(META) for n, v in start.items()}, torch.float32, kept_sets=True)
    found.old_is_learner = False
    return found


def rollout(policy, path=None):
    model = policy.model
    prompts = ["a", "a", "a", "b", "b"]
    return Rollout(
        ids=torch.arange(ROWS),
        groups=torch.tensor([0, 0, 0, 1, 1]),
        prompts=prompts,
        cond=model.encode_prompts(prompts),
        latents=torch.zeros(ROWS, *model.latent_shape, device=META),
        sigmas=torch.linspace(1, 0.1, 4, device=META).expand(ROWS, -1),
        advantages=torch.zeros(ROWS, device=META),
        path=path,
    )


def test_of_diffusion_nft(policy):
    settings = nft.Settings(
        mini_batch=2,
        nft_beta=1.0,
        kl_beta=1e-4,
        advantage_clip=5.0,
        advantage_mode="all",
        timesteps_fraction=0.5,
        decay_type=1,
    )
    with Copies() as copies:
        sums = back_up(nft.terms(policy, rollout(policy), settings, (0, 1)), policy, 1.0)
    assert copies.seen >= 3 * 2  # noise of three mini-batches at two levels
    assert "kl_div_loss" in sums.totals
    assert all(master.grad is not None for master in policy.masters)


def test_of_supervised_fine_tuning(policy):
    settings = sft.Settings(2, "logit_normal", 0.0, 1.0, 3.0, caption_dropout=0.5)
    latents = list(torch.zeros(ROWS, *policy.model.latent_shape, device=META))
    with Copies() as copies:
        sums = back_up(sft.terms(policy, latents, ["a"] * ROWS, torch.arange(ROWS), settings, (0, 1)), policy, 1.0)
    assert copies.seen >= 3
    assert "sigma" in sums.totals


def test_of_flow_grpo(policy):
    shape = policy.model.latent_shape
    path = Path(torch.zeros(ROWS, 3, *shape), torch.linspace(0.9, 0.3, 3).expand(ROWS, -1), torch.zeros(ROWS, 2))
    settings = flow_grpo.Settings(2, Dynamics("sde", 0.7, 0.95), 1.0, 1e-3, 1e-3, 0.04, 5.0, "all", 1.0, False, False)
    with Copies() as copies:
        sums = back_up(flow_grpo.terms(policy, rollout(policy, path), settings, (0, 1)), policy, 1.0)
    assert copies.seen >= 3 * 2
    assert "kl_div_loss" in sums.totals


def test_the_watch_sees_a_copy_that_blocks(policy):
    with Copies(), pytest.raises(AssertionError, match="blocks"):
        torch.zeros(2).to(META)
    with pytest.raises((RuntimeError, NotImplementedError)):
        float(policy.masters[0].sum())
