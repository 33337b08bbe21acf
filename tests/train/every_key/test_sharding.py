"""train.fsdp_*: each case shows its key being honoured on a group of one rank, which cuts weights into one part."""

import socket

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from sanarl.runtime.sharding import shard
from sanarl.runtime.world import PeerLost, World
from sanarl.training import settings

honours = pytest.mark.honours


@pytest.fixture
def group():
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def passed(lab, group):  # noqa: ARG001  # entered for as long as the test runs
    """A function that cuts a transformer as keys say and runs it forward and back."""

    def go(*overrides):
        loaded = lab.loaded("sft", "policy.parallelism.dp_shard_size=2", *overrides)
        with lab.parts("sft", "policy.parallelism.dp_shard_size=2", *overrides) as made:
            model = made.model
            shard(model.transformer, World(), settings.sharding(loaded.config))
            x = torch.ones(1, *model.latent_shape)
            v = model.velocity(x, torch.ones(1), model.encode_prompts(["a red circle"]))
            between = [p for p in model.transformer.transformer_blocks.parameters() if isinstance(p, DTensor)]
            v.square().mean().backward()
            return model.transformer, between

    return go


@honours("train.fsdp_reshard_after_forward")
def test_weights_between_forward_and_backward(passed):
    for override, freed in ((), True), (("always",), True), (("never",), False):
        overrides = [f'train.fsdp_reshard_after_forward="{word}"' for word in override]
        transformer, between = passed(*overrides)
        assert len(between) == (len(list(transformer.transformer_blocks.parameters())) if freed else 0)


@honours("train.fsdp_reduce_dtype")
def test_dtype_of_sums(passed):
    # Reference: bfloat16 numbers survive a round trip through bfloat16.
    for word, exact in (("float32", False), ("bfloat16", True)):
        transformer, _ = passed(f'train.fsdp_reduce_dtype="{word}"')
        grads = [p.grad.to_local() for p in transformer.transformer_blocks.parameters()]
        assert all(torch.equal(g, g.bfloat16().float()) for g in grads) == exact


@honours("train.fsdp_offload")
def test_host_memory(lab, passed):
    # On the CPU parts lie in host memory anyway: what can be seen is that the run is told, and that it still learns.
    for word, offload in (("false", False), ("true", True)):
        assert settings.sharding(lab.loaded("sft", f"train.fsdp_offload={word}").config).offload is offload
    transformer, _ = passed("train.fsdp_offload=true")
    assert all(p.grad.to_local().device.type == "cpu" for p in transformer.parameters())


@honours("policy.parallelism.dp_shard_size")
def test_keys_of_cut_weights_are_idle_otherwise(lab):
    keys = "train.fsdp_reduce_dtype='bfloat16'", "train.fsdp_offload=true"
    for task, size, idle in (("sft", 1, True), ("sft-lora", 2, True), ("sft", 2, False)):
        found = lab.idle(task, *keys, f"policy.parallelism.dp_shard_size={size}")
        assert {"train.fsdp_reduce_dtype", "train.fsdp_offload"}.issubset(found) == idle
        assert "train.fsdp_reshard_after_forward" not in found  # not given


@honours("train.rank_timeout_s")
def test_ranks_that_do_not_come(lab, monkeypatch):
    # A second rank is announced and never starts.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name, value in (("RANK", 0), ("WORLD_SIZE", 2), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port)):
        monkeypatch.setenv(name, str(value))
    with pytest.raises(PeerLost, match=r"train.rank_timeout_s = 2; go on .* --resume auto"):
        lab.fresh("sft", "train.rank_timeout_s=2.0")
