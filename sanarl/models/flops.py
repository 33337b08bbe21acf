"""Floating-point operations of a transformer's forward pass, counted on shapes alone."""

import copy
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from sanarl.models.base import FlowModel

WEIGHT_OPS = frozenset({"mm", "addmm", "convolution", "_convolution"})


class Flops(NamedTuple):
    """Multiplications and additions of a forward pass."""

    weights: int
    """Of products of weights and activations: linear layers and convolutions."""
    attention: int
    """Of products of activations and activations."""


class ForwardFlops:
    """Multiplications and additions of one sample's forward pass.

    They are counted by torch's FlopCounterMode on a copy without storage, made from the transformer's configuration, so
    that neither adapters nor compiled or quantised layers change the count, and each shape is counted once.
    """

    def __init__(self, model: FlowModel):
        """Nothing is counted yet."""
        self._model = model
        self._copy: FlowModel | None = None
        self._known: dict[tuple[tuple[int, ...], int], Flops] = {}

    def __call__(self, latent_shape: tuple[int, ...], tokens: int) -> Flops:
        """Operations of a sample of shape (C, ..., H, W) with ``tokens`` of text."""
        key = tuple(latent_shape), tokens
        if key not in self._known:
            self._known[key] = self._count(*key)
        return self._known[key]

    def _count(self, latent_shape: tuple[int, ...], tokens: int) -> Flops:
        if self._copy is None:
            transformer = self._model.transformer
            self._copy = copy.copy(self._model)
            with torch.device("meta"):
                self._copy.transformer = type(transformer).from_config(transformer.config).eval()
        with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
            self._copy.velocity(torch.empty(1, *latent_shape), torch.empty(1), self._copy.blank(tokens))
        by_op = {str(op).removeprefix("aten."): n for op, n in counter.get_flop_counts()["Global"].items()}
        weights = sum(n for op, n in by_op.items() if op in WEIGHT_OPS)
        return Flops(weights, counter.get_total_flops() - weights)
