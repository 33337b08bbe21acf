"""Compiled blocks: the same velocities and gradients, and value sets that switch without compiling anew."""

import pytest
import torch

from sanarl.config import load
from sanarl.models.base import GRAPHS
from sanarl.models.replicas import compiled_graphs
from sanarl.runtime.world import World
from sanarl.training import build, modelling


@pytest.mark.parametrize("fused", ["false", "true"], ids=["plain", "fused"])
def test_value_sets_switch_without_compiling_anew(toml, tmp_path, fused):
    # Reference: the same blocks without compilation. The graphs are torch's; what makes kernels of them is left out,
    # which takes minutes on a CPU.
    file = tmp_path / "preset.toml"
    file.write_text(toml("nft", tmp_path / "out"), encoding="utf-8")
    with build.parts(load(file, ("validation.enable=false", f"train.fuse={fused}")).config, None, World()) as made:
        policy = made.policy
        draw = torch.Generator().manual_seed(0)
        for values in (policy.masters, policy.sets["old"]):
            for value in values:
                value.data += 0.1 * torch.randn(value.shape, generator=draw)
        policy.publish()
        x, sigma = torch.randn(2, *made.model.latent_shape, generator=draw), torch.tensor([0.3, 0.8])
        cond = made.model.encode_prompts(["a red circle", "two blue squares"])

        def passes():
            with torch.no_grad():
                with policy.old():
                    old = policy.velocity(x, sigma, cond)
                with policy.reference():
                    reference = policy.velocity(x, sigma, cond)
            learner = policy.velocity(x, sigma, cond)
            learner.square().mean().backward()
            policy.collect_gradients()
            grads = [master.grad for master in policy.masters]
            for master in policy.masters:
                master.grad = None
            return [old, reference, learner.detach(), *grads]

        eager = passes()
        assert not torch.equal(eager[0], eager[1])
        torch._dynamo.utils.counters.clear()
        modelling.compile_blocks(made.model.transformer, torch.device("cpu"), backend="aot_eager")
        torch.testing.assert_close(passes(), eager, rtol=1e-4, atol=1e-6)
        graphs = compiled_graphs()
        assert torch._dynamo.config.recompile_limit >= GRAPHS  # past it torch falls back to eager in silence
        assert 1 <= graphs <= 2 * len(made.model.transformer.transformer_blocks)
        for values in (policy.masters, policy.sets["old"]):
            for value in values:
                value.data.mul_(1.5)
        policy.publish()
        passes()
        assert compiled_graphs() == graphs
        torch.compiler.reset()
