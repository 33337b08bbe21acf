"""Statistics of samples that change when a reward is hacked: edges, colours, sharpness, contrast, motion."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

NAMES = ("edge_density", "colour_entropy", "saturation", "sharpness", "contrast", "motion")
"""The last one is of clips alone."""
EDGE = 0.1
"""Gradient that counts as an edge, where a step from black to white has 1."""
LEVELS = 8
"""Of each colour in the histogram: 512 colours in all."""

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601
_SOBEL = ((-1.0, 0.0, 1.0), (-2.0, 0.0, 2.0), (-1.0, 0.0, 1.0))
_LAPLACE = ((0.0, 1.0, 0.0), (1.0, -4.0, 1.0), (0.0, 1.0, 0.0))


def statistics(media: Tensor) -> Tensor:
    """Media (B, F, 3, H, W) in [0, 1] -> (B, 6), or (B, 5) of pictures, in the order of ``NAMES``, float64 on the CPU.

    ``edge_density``: share of pixels whose Sobel gradient of luma exceeds ``EDGE`` (Sobel and Feldman, 1968).
    ``colour_entropy``: Shannon entropy in bits of the histogram over ``LEVELS`` ** 3 colours, at most 9.
    ``saturation``: mean of (max - min) / max of the three colours, as in HSV; black has 0.
    ``sharpness``: variance of the Laplacian of luma (Pech-Pacheco et al., ICPR 2000).
    ``contrast``: standard deviation of luma.
    ``motion``: mean absolute difference of neighbouring frames; where F = 1 there is none.
    The others are means over frames, but the entropy, which is of all frames together.
    """
    media = media.detach().float().clamp(0, 1)
    luma = (media * media.new_tensor(_LUMA).view(3, 1, 1)).sum(2)  # (B, F, H, W)
    found = [
        _edge_density(luma),
        torch.stack([_entropy(sample) for sample in media]),
        _saturation(media),
        _filtered(luma, _LAPLACE).flatten(2).var(2, correction=0).mean(1),
        luma.flatten(2).std(2, correction=0).mean(1),
    ]
    if media.shape[1] > 1:
        found.append(media.diff(dim=1).abs().mean((1, 2, 3, 4)))
    return torch.stack([value.double().cpu() for value in found], 1)


def _filtered(luma: Tensor, kernel: tuple[tuple[float, ...], ...]) -> Tensor:
    """Where the whole 3 x 3 kernel fits: (B, F, H, W) -> (B, F, H - 2, W - 2)."""
    weight = luma.new_tensor(kernel).view(1, 1, 3, 3)
    found = F.conv2d(luma.flatten(0, 1)[:, None], weight)
    return found.reshape(*luma.shape[:2], *found.shape[2:])


def _edge_density(luma: Tensor) -> Tensor:
    across = _filtered(luma, _SOBEL)
    down = _filtered(luma, tuple(zip(*_SOBEL, strict=True)))
    return (torch.hypot(across, down) / 4 > EDGE).double().mean((1, 2, 3))


def _entropy(sample: Tensor) -> Tensor:
    """Of one sample (F, 3, H, W)."""
    level = (sample * LEVELS).long().clamp(max=LEVELS - 1)
    number = (level[:, 0] * LEVELS + level[:, 1]) * LEVELS + level[:, 2]
    share = torch.bincount(number.flatten(), minlength=LEVELS**3).double() / number.numel()
    nats: Tensor = torch.special.entr(share).sum()
    return nats / math.log(2)


def _saturation(media: Tensor) -> Tensor:
    high, low = media.amax(2), media.amin(2)
    return ((high - low) / high.clamp(min=1e-12)).mean((1, 2, 3))
