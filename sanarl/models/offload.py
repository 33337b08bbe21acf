"""Frozen modules that wait on the CPU and visit the device only while they work."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class Visitor:
    """A frozen module, on the device for good or for the length of a ``with``.

    When it only visits, its weights stay in page-locked CPU memory and are copied to the device each time; they never
    change, so nothing is copied back.
    """

    def __init__(self, module: nn.Module, device: torch.device, stays: bool):
        """Freeze ``module``; move it to ``device`` when it ``stays``, otherwise prepare its weights for visits."""
        self.module = module.requires_grad_(False).eval()
        self._device = device
        self._home: list[tuple[torch.Tensor, torch.Tensor]] = []
        if stays:
            module.to(device)
            return
        module.to("cpu")
        for tensor in (*module.parameters(), *module.buffers()):
            if device.type == "cuda":
                tensor.data = tensor.data.pin_memory()
            self._home.append((tensor, tensor.data))

    @contextmanager
    def here(self) -> Iterator[nn.Module]:
        """The module, on the device."""
        for tensor, home in self._home:
            tensor.data = home.to(self._device, non_blocking=True)
        try:
            yield self.module
        finally:
            for tensor, home in self._home:
                tensor.data = home
