"""What this machine computes with: devices, the precisions that work on them, compilers. Each is tried, not assumed.

torch is imported inside the functions: a machine without it must still get an answer.
"""

import os
import re
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sanarl.runtime.requirements import install_line, why

if TYPE_CHECKING:
    import torch

FP8_CAPABILITY = (8, 9)
NVFP4_CAPABILITY = (10, 0)

TOLERANCES = {"float32": 1e-3, "bfloat16": 2e-2, "float16": 5e-3}
"""Relative error (Frobenius norm) that a product of 64x64 normal matrices may have; TF32 counts as float32."""

FP8_TOLERANCE = 0.08
NVFP4_TOLERANCE = 0.4
"""Both factors are rounded: to 4 significant bits in FP8, which costs these products 3.5 % (emulated on the CPU), and
to 2 in NVFP4, whose backward pass also rounds at random. A kernel that pairs the wrong rows is off by over 100 %."""


@dataclass(frozen=True)
class Device:
    """A GPU that torch sees, in bytes; ``reason`` says what could not be read of it."""

    index: int
    name: str
    memory: int | None = None
    free: int | None = None
    capability: tuple[int, int] | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Devices:
    """What torch can compute on. ``reason`` says why there is no GPU, when there is none."""

    gpus: tuple[Device, ...]
    reason: str | None
    torch_cuda: str | None = None
    driver: str | None = None
    nccl: str | None = None


@dataclass(frozen=True)
class Precision:
    """Whether a matrix product in this precision works on a device, and why not."""

    name: str
    device: str
    works: bool
    reason: str | None = None
    install: str | None = None


def driver_version(file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Version of NVIDIA's kernel driver, or None."""
    try:
        found = re.search(r"\s(\d{3,}\.\d+(?:\.\d+)?)\s", file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return found.group(1) if found else None


def devices() -> Devices:
    """The GPUs that torch sees, or the reason it gives for seeing none."""
    driver = driver_version()
    try:
        import torch
    except Exception as error:
        return Devices((), f"torch cannot be imported: {why(error)}", driver=driver)
    built = torch.version.cuda
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.cuda.init()
            count = torch.cuda.device_count()
        except Exception as error:
            said = " ".join(str(error).split()) or why(error)
            return Devices((), _no_gpu(said, driver, built), built, driver)
        if not count:
            return Devices((), _no_gpu("torch sees no GPU", driver, built), built, driver)
        return Devices(tuple(_device(index) for index in range(count)), None, built, driver, _nccl())


def _no_gpu(reason: str, driver: str | None, built: str | None) -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    said = [reason]
    if driver is not None and built is None:
        said.append(f"there is an NVIDIA driver ({driver}), but this torch is built without CUDA")
    if visible is not None:
        said.append(f"CUDA_VISIBLE_DEVICES={visible!r}")
    return "; ".join(said)


def _device(index: int) -> Device:
    import torch

    name = f"cuda:{index}"
    try:
        properties = torch.cuda.get_device_properties(index)
        name, capability = properties.name, (properties.major, properties.minor)
        free, total = torch.cuda.mem_get_info(index)
    except Exception as error:
        return Device(index, name, reason=why(error))
    return Device(index, name, total, free, capability)


def _nccl() -> str | None:
    import torch

    try:
        return ".".join(str(part) for part in torch.cuda.nccl.version())
    except Exception:
        return None


def precisions(found: Devices) -> tuple[Precision, ...]:
    """Try every precision on the CPU and on the first GPU of each model."""
    first = {gpu.name: gpu for gpu in reversed(found.gpus)}
    chosen = sorted(first.values(), key=lambda gpu: gpu.index)
    rows = [attempt(name, "cpu", lambda name=name: try_float("cpu", name)) for name in TOLERANCES]
    for gpu in chosen:
        device = f"cuda:{gpu.index}"
        rows += [attempt(name, device, lambda name=name, d=device: try_float(d, name)) for name in TOLERANCES]
        rows += [_fp8(device, gpu.capability), _nvfp4(device, gpu.capability)]
    if not chosen:
        rows += [_refused("FP8 row-wise", FP8_CAPABILITY), _refused("NVFP4", NVFP4_CAPABILITY)]
    return tuple(rows)


def attempt(name: str, device: str, probe: Callable[[], None], install: str | None = None) -> Precision:
    """Run a probe, which raises when the precision does not work; the error becomes the reason."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            probe()
    except Exception as error:
        return Precision(name, device, False, why(error), install)
    return Precision(name, device, True)


def _refused(name: str, needed: tuple[int, int]) -> Precision:
    reason = f"needs a GPU of compute capability {_dotted(needed)} or newer; torch sees none"
    return Precision(name, "cuda", False, reason)


def _too_small(name: str, device: str, capability: tuple[int, int] | None, needed: tuple[int, int]) -> Precision | None:
    if capability is not None and capability >= needed:
        return None
    has = _dotted(capability) if capability is not None else "unknown"
    reason = f"needs compute capability {_dotted(needed)} or newer; this GPU's is {has}"
    return Precision(name, device, False, reason)


def _dotted(capability: Sequence[int]) -> str:
    return ".".join(str(part) for part in capability)


def _fp8(device: str, capability: tuple[int, int] | None) -> Precision:
    refusal = _too_small("FP8 row-wise", device, capability, FP8_CAPABILITY)
    return refusal or attempt("FP8 row-wise", device, lambda: try_fp8(device))


def _nvfp4(device: str, capability: tuple[int, int] | None) -> Precision:
    refusal = _too_small("NVFP4", device, capability, NVFP4_CAPABILITY)
    if refusal is not None:
        return refusal
    install = install_line("sanarl[nvfp4]")
    if util.find_spec("transformer_engine") is None:
        return Precision("NVFP4", device, False, "TransformerEngine is not installed", install)
    return attempt("NVFP4", device, lambda: try_nvfp4(device), install)


def _factors(size: int) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
    import torch

    generator = torch.Generator().manual_seed(0)
    x, w, g = (torch.randn(size, size, generator=generator) for _ in range(3))
    return x, w, g


def _check(what: str, got: "torch.Tensor | None", exact: "torch.Tensor", tolerance: float) -> None:
    if got is None:
        raise ArithmeticError(f"there is no {what}")
    error = ((got.detach().double().cpu() - exact).norm() / exact.norm()).item()
    if not error <= tolerance:  # NaN compares false
        raise ArithmeticError(f"the {what} is off by {error:.3g} of its norm, more than {tolerance:g}")


def try_float(device: str, dtype: str) -> None:
    """Multiply two 64x64 matrices and go back through the product.

    Raises:
        ArithmeticError: The result is not that of float64 within ``TOLERANCES``.
        Exception: Whatever torch raises when it cannot.
    """
    import torch

    x, w, g = _factors(64)
    kind = getattr(torch, dtype)
    weight = w.to(device, kind).requires_grad_()
    product = x.to(device, kind) @ weight
    product.backward(g.to(device, kind))
    _check("product", product, x.double() @ w.double(), TOLERANCES[dtype])
    _check("gradient", weight.grad, x.double().T @ g.double(), TOLERANCES[dtype])


def try_fp8(device: str) -> None:
    """Multiply two 64x64 matrices in E4M3 with one scale a row of the first and a column of the second.

    Raises:
        ArithmeticError: The result is not that of float64 within ``FP8_TOLERANCE``.
        Exception: Whatever torch raises when it cannot.
    """
    import torch

    x, w, _ = _factors(64)
    top = torch.finfo(torch.float8_e4m3fn).max
    rows, columns = x.abs().amax(1, keepdim=True) / top, w.abs().amax(0, keepdim=True) / top
    product = torch._scaled_mm(
        (x / rows).to(device, torch.float8_e4m3fn),
        (w / columns).T.contiguous().to(device, torch.float8_e4m3fn).T,  # the second factor lies column by column
        scale_a=rows.to(device),
        scale_b=columns.to(device),
        out_dtype=torch.bfloat16,
    )
    _check("product", product, x.double() @ w.double(), FP8_TOLERANCE)


def try_nvfp4(device: str) -> None:
    """Run a 256x256 linear layer of TransformerEngine under its NVFP4 recipe, forward and back.

    Raises:
        ArithmeticError: The result is not that of float64 within ``NVFP4_TOLERANCE``.
        Exception: Whatever TransformerEngine raises when it cannot.
    """
    import torch
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import NVFP4BlockScaling

    x, w, g = _factors(256)
    layer: Any = te.Linear(256, 256, bias=False, params_dtype=torch.bfloat16, device=device)
    with torch.no_grad():
        layer.weight.copy_(w)
    # Renamed in 2.9, with its keyword.
    current = hasattr(te, "autocast")
    recipe = NVFP4BlockScaling()
    with te.autocast(enabled=True, recipe=recipe) if current else te.fp8_autocast(enabled=True, fp8_recipe=recipe):
        product = layer(x.to(device, torch.bfloat16))
    product.backward(g.to(device, torch.bfloat16))
    _check("product", product, x.double() @ w.double().T, NVFP4_TOLERANCE)
    _check("gradient", layer.weight.grad, g.double().T @ x.double(), NVFP4_TOLERANCE)


def cpu_compiler() -> tuple[bool, str]:
    """Whether torch.compile has on the CPU what it needs, and what that is or lacks."""
    default = "clang++" if sys.platform == "darwin" else "g++"
    return _compiler("CXX", (default,), "C++")


def cuda_compiler() -> tuple[bool, str]:
    """Whether torch.compile has on a GPU what it needs (triton, which needs a C compiler), and what it lacks."""
    from importlib import metadata

    try:
        triton = f"triton {metadata.version('triton')}"
    except metadata.PackageNotFoundError:
        if util.find_spec("triton") is None:
            return False, "triton is not installed"
        triton = "triton"
    good, said = _compiler("CC", ("gcc", "clang"), "C")
    return good, f"{triton}; {said}"


def _compiler(variable: str, names: Sequence[str], language: str) -> tuple[bool, str]:
    asked = os.environ.get(variable)
    candidates = (asked,) if asked else tuple(names)
    path = next((found for name in candidates if (found := shutil.which(name))), None)
    if path is None:
        origin = f" ({variable})" if asked else ""
        return False, f"no {language} compiler: {' or '.join(candidates)}{origin} is not on PATH"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        return False, f"{path}, but {header} is missing (Debian: python3-dev)"
    return True, path
