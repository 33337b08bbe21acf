"""The size of a picture as a JPEG file."""

import io

import pytest
import torch
from PIL import Image

from sanarl.rewards import build


def test_sizes_are_those_of_files():
    # Reference: Pillow's file of the same 8-bit picture; noise takes more than one colour.
    noise = torch.rand(3, 40, 56, generator=torch.Generator().manual_seed(0)).mul(255).round().div(255)
    media = torch.stack([noise, torch.full_like(noise, 0.2)])[:, None]
    sizes = []
    for (frame,) in media:
        file = io.BytesIO()
        Image.fromarray((frame * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()).save(file, "JPEG", quality=95)
        sizes.append(len(file.getvalue()) / 1000)
    assert sizes[0] > 2 * sizes[1] > 0
    scores = build({"jpeg_incompressibility": 1.0})(media, ["a", "b"], [{}, {}]).total
    assert scores.dtype == torch.float32
    assert scores.tolist() == pytest.approx(sizes)
    small = build({"jpeg_compressibility": 1.0})
    assert small(media, ["a", "b"], [{}, {}]).total.tolist() == pytest.approx([-size / 500 for size in sizes])
    clip = media.transpose(0, 1)
    assert small(clip, ["a"], [{}]).total.tolist() == pytest.approx([-sum(sizes) / 1000])
    assert build({"jpeg_compressibility": 1.0})(media[:1], ["a"], [{}]).total.item() == pytest.approx(-sizes[0] / 500)
