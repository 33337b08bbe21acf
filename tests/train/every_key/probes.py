"""Rewards that score what a run does instead of what it paints, named by their path in the tests' TOML."""

import torch


def width(media, _prompts, _metadata):
    """Pixels across, (B,)."""
    return torch.full((len(media),), float(media.shape[-1]))


def height(media, _prompts, _metadata):
    """Pixels down, (B,)."""
    return torch.full((len(media),), float(media.shape[-2]))


def length(_media, prompts, _metadata):
    """Letters of the prompt, (B,)."""
    return torch.tensor([float(len(prompt)) for prompt in prompts])


class Scaled:
    """Pixels across, times what it was built with."""

    def __init__(self, factor=1.0):
        self.factor = factor

    def __call__(self, media, _prompts, _metadata):
        return torch.full((len(media),), self.factor * media.shape[-1])


def determinism(media, _prompts, _metadata):
    """1 where torch was asked for deterministic kernels, (B,)."""
    return torch.full((len(media),), float(torch.are_deterministic_algorithms_enabled()))
