import pytest
import torch

from sanarl.runtime.meter import Meter, Peak, measured, peak
from sanarl.runtime.world import World


def test_passes_by_hand():
    # Reference: by hand: W = 10, A = 1; 3 samples without gradients, 2 with, of all weights or an adapter's.
    for trains_all, expected in ((True, 3 * 11 + 2 * 33), (False, 3 * 11 + 2 * 23)):
        asked = []
        meter = Meter(
            lambda shape, tokens, seen=asked: seen.append((shape, tokens)) or (10, 1), trains_all, Peak(2e-12, "x")
        )
        with torch.no_grad():
            meter.saw(torch.Size([3, 4, 8, 8]), 12)
        meter.saw(torch.Size([2, 4, 8, 8]), 7)
        assert meter.take(5.0, World()) == pytest.approx({"perf/tflops": expected / 5e12, "perf/mfu": expected / 10})
        assert asked == [((4, 8, 8), 12), ((4, 8, 8), 7)]


def test_a_cpu_is_measured_against_itself():
    # Reference: a rate measured a second time by the same product; loose, because the machine does other things too.
    found = peak(torch.device("cpu"), torch.float32)
    assert "measured here" in found.source
    assert 1e-4 < found.tflops < 100
    assert 0.02 < measured(torch.device("cpu"), torch.float32) / found.tflops < 50


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA H200", torch.bfloat16, 989.0),
        ("NVIDIA H100 80GB HBM3", torch.float32, 67.0),
        ("NVIDIA H100 PCIe", torch.bfloat16, 756.0),
        ("NVIDIA L4", torch.float16, 121.0),
        ("NVIDIA L40S", torch.bfloat16, 362.0),
        ("NVIDIA GB200", torch.bfloat16, 2500.0),
        ("NVIDIA A100-SXM4-80GB", torch.bfloat16, 312.0),
        ("NVIDIA GeForce RTX 4090", torch.bfloat16, 165.2),
    ],
)
def test_data_sheets(monkeypatch, name, dtype, tflops):
    # Reference: NVIDIA's data sheets, dense.
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert peak(torch.device("cuda"), dtype).tflops == tflops
