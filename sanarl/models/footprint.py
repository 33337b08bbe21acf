"""The memory that a computation takes, found without a device: torch runs it on tensors that have shapes only.

A module's shadow has its structure and no storage. While a shadow runs, every new tensor is entered in a ledger and
struck out when the last reference to it goes, as the allocator of a GPU would see it; forward, backward and what
checkpointing repeats are what torch really does, for any model. What kernels take besides is added where it is large:

- convolutions copy input and output into another memory layout (cuDNN), in pieces of at most ``CONVOLUTION_PIECE``
  numbers once the whole has more than 32 bits can count;
- attention is computed by the fused kernel that GPUs use, which keeps no table of scores.
"""

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROUNDING = 512
"""Bytes to which the allocator of a GPU rounds up."""
CONVOLUTION_PIECE = 512 * 2**20
MOST_IN_32_BITS = 2**31 - 1


class Used(NamedTuple):
    """Bytes of what a computation made."""

    peak: int
    """At most at once."""
    kept: int
    """Still there at its end."""


def shadow(module: nn.Module) -> Any:
    """A copy of a module that has no storage."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        empty = torch.empty_like(tensor, device="meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
    for value in (value for part in module.modules() for value in vars(part).values()):
        if isinstance(value, Tensor):  # a table beside the buffers; shadows compute where there is no device
            memo[id(value)] = torch.zeros(value.shape, dtype=value.dtype)
    return copy.deepcopy(module, memo)


def num_bytes(module: nn.Module) -> int:
    """Of parameters and buffers, as the allocator of a GPU would count them."""
    return sum(_rounded(t.untyped_storage().nbytes()) for t in (*module.parameters(), *module.buffers()))


def used(shadows: list[nn.Module], prepare: Callable[[], Callable[[], Any]], gradients: bool = False) -> Used:
    """What a computation takes besides the weights of its shadows and what ``prepare`` makes.

    Args:
        shadows: of the modules that take part; their gradients are forgotten afterwards.
        prepare: makes inputs, as if with storage, and gives what shall be measured.
        gradients: whether operations are recorded for a backward pass.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, _attention_of_gpus(), torch.set_grad_enabled(gradients), _given_shapes(shadows):
        run, ledger = prepare(), _Ledger(t for each in shadows for t in (*each.parameters(), *each.buffers()))
        with ledger:
            result = run()
        kept = ledger.live
        del result
    return Used(ledger.peak, kept)


def saved_by(blocks: list[nn.Module], run: Callable[[], Any], backend: str | None = None) -> int:
    """Bytes that blocks save for their backward pass, weights apart; for blocks that ``backend`` compiles, if given."""
    own = {t.untyped_storage()._cdata for block in blocks for t in (*block.parameters(), *block.buffers())}
    saved: dict[int, tuple[torch.UntypedStorage, int]] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage, storage.nbytes()
        return tensor

    def watched(block: nn.Module) -> Callable[..., Any]:
        inner = block.forward if backend is None else torch.compile(block.forward, backend=backend, dynamic=False)

        def forward(*args: Any, **named: Any) -> Any:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                return inner(*args, **named)

        return forward

    try:
        for block in blocks:
            block.forward = watched(block)  # type: ignore[method-assign]
        with _attention_of_gpus():
            run()
    finally:
        for block in blocks:
            del block.forward
    return sum(size for _, size in saved.values())


class _Ledger(TorchDispatchMode):
    """Adds up the storages of tensors that operations make, for as long as they live."""

    def __init__(self, known: Iterator[Tensor]):
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[int, Any] = {t.untyped_storage()._cdata: None for t in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._enter(tensor.untyped_storage())
        self.peak = max(self.peak, self.live + _workspace(func, args, out))
        return out

    def _enter(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, _rounded(storage.nbytes())
        if key in self._known:
            return

        def gone(_: Any) -> None:
            self.live -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, gone)
        self.live += size


def _workspace(func: Any, args: Any, out: Any) -> int:
    """What a convolution takes for the layout of its input and output, or of their gradients."""
    if func is torch.ops.aten.convolution.default:
        ends = args[0], out
    elif func is torch.ops.aten.convolution_backward.default:
        ends = args[0], args[1]
    else:
        return 0
    total = sum(t.numel() * t.element_size() for t in ends)
    largest = max(t.numel() for t in ends)
    if largest <= MOST_IN_32_BITS:
        return total
    rows = len(ends[0])
    return total * max(CONVOLUTION_PIECE * rows // largest, 1) // rows


@contextmanager
def _given_shapes(shadows: list[nn.Module]) -> Iterator[None]:
    """Let shadows compute as if they had storage; in a FakeTensorMode."""
    tables: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for module in (m for each in shadows for m in each.modules()):
        for table in (module._parameters, module._buffers):
            tables.append((table, dict(table)))
            for name, tensor in table.items():
                if tensor is None:
                    continue
                like = torch.empty(tensor.shape, dtype=tensor.dtype)
                table[name] = nn.Parameter(like, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else like
    try:
        yield
    finally:
        for table, before in tables:
            table.update(before)


@contextmanager
def _attention_of_gpus() -> Iterator[None]:
    """Without a device torch would write attention out as products of matrices, whose scores nobody keeps on a GPU."""
    before = F.scaled_dot_product_attention

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        del attn_mask, dropout_p, is_causal, scale, enable_gqa  # none of them takes memory worth counting
        heads = query.shape[1]
        key, value = (t if t.shape[1] == heads else t.repeat_interleave(heads // t.shape[1], 1) for t in (key, value))
        fused = torch.ops.aten._scaled_dot_product_efficient_attention
        return fused(query, key, value, None, torch.is_grad_enabled())[0]

    F.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        F.scaled_dot_product_attention = before


def _rounded(size: int) -> int:
    return -(-size // ROUNDING) * ROUNDING
