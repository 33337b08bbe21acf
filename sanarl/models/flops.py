"""Floating-point operations of a transformer's forward pass, counted on shapes alone."""

from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

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

    def __init__(self, transformer: nn.Module):
        """Nothing is counted yet."""
        self._transformer = transformer
        self._copy: nn.Module | None = None
        self._known: dict[tuple[tuple[int, ...], int], Flops] = {}

    def __call__(self, latent_shape: tuple[int, ...], tokens: int) -> Flops:
        """Operations of a sample of shape (C, ..., H, W) with ``tokens`` of text."""
        key = tuple(latent_shape), tokens
        if key not in self._known:
            self._known[key] = self._count(*key)
        return self._known[key]

    def _count(self, latent_shape: tuple[int, ...], tokens: int) -> Flops:
        config = self._transformer.config
        if self._copy is None:
            with torch.device("meta"):
                self._copy = type(self._transformer).from_config(config).eval()
        with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
            self._copy(
                torch.zeros(1, *latent_shape),
                encoder_hidden_states=torch.zeros(1, tokens, config.caption_channels),
                encoder_attention_mask=torch.ones(1, tokens),
                timestep=torch.zeros(1),
                return_dict=False,
            )
        by_op = {str(op).removeprefix("aten."): n for op, n in counter.get_flop_counts()["Global"].items()}
        weights = sum(n for op, n in by_op.items() if op in WEIGHT_OPS)
        return Flops(weights, counter.get_total_flops() - weights)
