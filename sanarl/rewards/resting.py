"""Reward models that wait in host memory while nothing is scored."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

_OURS = "sanarl.rewards."


class Resting:
    """The models of rewards, which their first batch brings to its device, and ``rest`` takes off it again.

    Weights never change, so they are kept where they were, page-locked where there is a GPU; nothing is copied back.
    Only rewards of this package have their models moved, and of those only the ones without a device of their own:
    what others do with theirs is not known here.
    """

    def __init__(self, rewards: Iterable[Any]):
        """Look for models; they are on the CPU now."""
        self.modules = [module for reward in rewards for module in models(reward)]
        self._homes: list[tuple[dict[str, Any], str, Tensor, Tensor]] = []
        for module in (m for each in self.modules for m in each.modules()):
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        tensor.data = _locked(tensor.data)
                        self._homes.append((table, name, tensor, tensor.data))

    def rest(self) -> None:
        """Free what the models take of their device."""
        for table, name, tensor, home in self._homes:
            tensor.data = home
            table[name] = tensor  # where moving it made another


def models(reward: Any) -> Iterator[nn.Module]:
    """The models that a reward of this package computes with wherever its pictures are."""
    ours = any(kind.__module__.startswith(_OURS) for kind in type(reward).__mro__)
    if not ours or getattr(reward, "device", None) is not None:
        return
    for value in vars(reward).values():
        if isinstance(value, nn.Module):
            yield value
        else:
            yield from models(value)


def num_bytes(rewards: Iterable[Any]) -> int:
    """What the models of rewards take, of those that come to the pictures' device."""
    tensors = (t for r in rewards for m in models(r) for t in (*m.parameters(), *m.buffers()))
    return sum(t.numel() * t.element_size() for t in tensors)


def _locked(values: Tensor) -> Tensor:
    return values.pin_memory() if torch.cuda.is_available() and values.device.type == "cpu" else values
