"""Which of a transformer's repeated blocks compute their activations again in the backward pass (arXiv:1604.06174).

``selective`` keeps the activations of every second block of each list: half of the memory for half of the second
forward pass. Torch's own selective policies choose by operation instead (keep products of matrices, repeat the rest);
they watch operations from outside, so they do not see into compiled blocks, and they keep what SANA has most of, the
wide outputs of its FFN. Whole blocks are the same for eager and compiled code and for weights that ranks share.
"""

from collections.abc import Callable
from typing import Any, Literal

from torch import nn
from torch.utils.checkpoint import checkpoint

Checkpointing = Literal["off", "selective", "full"]


def as_written(value: bool | Literal["selective"]) -> Checkpointing:
    """What ``policy.model_gradient_checkpointing`` says."""
    return value if value == "selective" else "full" if value else "off"


def repeated(transformer: nn.Module) -> list[list[nn.Module]]:
    """The lists of repeated blocks."""
    return [list(child) for child in transformer.children() if isinstance(child, nn.ModuleList)]


def kept(transformer: nn.Module, how: Checkpointing) -> int:
    """Blocks that keep their activations."""
    every = {"off": 1, "selective": 2, "full": 0}[how]
    return sum(len(blocks) // every for blocks in repeated(transformer)) if every else 0


def set_checkpointing(transformer: Any, how: Checkpointing) -> None:
    """Let a transformer of diffusers do so from now on; results stay, bit by bit."""
    transformer.disable_gradient_checkpointing()
    if how == "off":
        return
    again = {id(block) for blocks in repeated(transformer) for block in blocks[:: 2 if how == "selective" else 1]}

    def run(block: nn.Module, *args: Any) -> Any:
        call: Callable[..., Any] = block.__call__
        return checkpoint(call, *args, use_reentrant=False) if id(block) in again else call(*args)

    transformer.enable_gradient_checkpointing(run)
