"""Fully sharded data parallelism (Zhao et al., arXiv:2304.11277) of a transformer, by torch's ``fully_shard``.

Every rank keeps a part of each weight; a block's weights are put together just before it computes and its gradients
are summed and cut apart right after. Beside world.py the only module that talks to torch.distributed.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from sanarl.errors import UserError
from sanarl.runtime.world import World

Gathered = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Sharding:
    """Names as in the configuration's ``policy.parallelism.dp_shard_size`` and ``train.fsdp_*``."""

    shard_size: int
    """Ranks that share a copy of the weights; other ranks hold other copies."""
    reduce_dtype: torch.dtype
    """In which gradients are summed over ranks."""
    reshard_after_forward: bool
    """Free a block's weights after its forward pass and put them together again for the backward pass."""
    offload: bool
    """Keep the parts in host memory, and step the optimiser there."""


def sizes(world_size: int, shard_size: int) -> tuple[int, int]:
    """Copies, and ranks that share each: their product is ``world_size``, and nobody holds more than was asked.

    The ranks of a copy are the smallest divisor of ``world_size`` from ``shard_size`` up; all, where there are fewer.
    """
    shards = next((n for n in range(shard_size, world_size) if world_size % n == 0), world_size)
    return world_size // shards, shards


def shard(transformer: nn.Module, world: World, settings: Sharding) -> Gathered:
    """Cut every weight of ``transformer`` over the ranks, in place; gradients become sums over ranks, not means.

    Returns:
        A context in which every rank holds all weights whole, so that the numbers of their forward passes may differ.

    Raises:
        UserError: when this torch sums no gradients that way.
    """
    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        raise UserError(
            f"policy.parallelism.dp_shard_size: found {settings.shard_size} on {world.size} ranks, but torch "
            f"{torch.__version__} cannot shard as needed here; install torch 2.11 or newer, or set it to 1"
        )
    copies, shards = sizes(world.size, settings.shard_size)
    # torch warns that the velocity is a view of the last layer's output; nothing ever changes a velocity in place.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
    names = ("replicate", "shard") if copies > 1 else ("shard",)
    mesh = init_device_mesh(world.device.type, (copies, shards) if copies > 1 else (shards,), mesh_dim_names=names)
    pinned = world.device.type != "cpu"
    offload = CPUOffloadPolicy(pin_memory=pinned) if settings.offload else OffloadPolicy()
    # Inputs stay as they are: the model casts them itself.
    precision = MixedPrecisionPolicy(reduce_dtype=settings.reduce_dtype, cast_forward_inputs=False)
    again = settings.reshard_after_forward
    for block in _blocks(transformer):
        fully_shard(block, mesh=mesh, mp_policy=precision, offload_policy=offload, reshard_after_forward=again)
    fully_shard(transformer, mesh=mesh, mp_policy=precision, offload_policy=offload, reshard_after_forward=False)
    for module in _sharded(transformer):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    return partial(_gathered, transformer, again)


@contextmanager
def _gathered(transformer: nn.Module, reshard_after_forward: bool) -> Iterator[None]:
    for module in _sharded(transformer):
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in _sharded(transformer):
            module.reshard()
            module.set_reshard_after_forward(reshard_after_forward and module is not transformer, recurse=False)


def _blocks(transformer: nn.Module) -> list[nn.Module]:
    """The repeated blocks, outermost lists of modules first."""
    return [block for child in transformer.children() if isinstance(child, nn.ModuleList) for block in child]


def _sharded(transformer: nn.Module) -> list[FSDPModule]:
    return [module for module in transformer.modules() if isinstance(module, FSDPModule)]
