"""Tensors of which every rank may hold a part only: DTensors, as fully sharded data parallelism makes them.

What works on single entries (copying, averaging, the optimiser) works on the parts; what needs a tensor whole asks for
it, on every rank at once.
"""

from collections.abc import Iterable

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def local(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The part of each tensor that this rank holds, which shares its memory; a whole tensor as it is."""
    return [t.to_local() if isinstance(t, DTensor) else t for t in tensors]


def is_part(tensor: Tensor) -> bool:
    """Whether other ranks hold other parts of this tensor."""
    return isinstance(tensor, DTensor)


def whole(tensor: Tensor) -> Tensor:
    """The tensor with all its parts; every rank must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(value: Tensor, target: Tensor) -> Tensor:
    """``value``, laid out over the ranks and devices as ``target`` is; every rank has it whole when ``target`` is not.

    Nothing is exchanged where ``value`` is whole: each rank takes its part.
    """
    if not isinstance(target, DTensor) or isinstance(value, DTensor):
        return value
    # The parts are cut on the mesh's device; an offloaded target gets its part on the CPU when it is copied.
    return distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)
