"""What a scorer's process does with a job: media from the file, scores as the wire has them; latents into clips."""

import inspect
import math
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sanarl.errors import UserError
from sanarl.importing import import_named, where
from sanarl.rewards import TABLE, build
from sanarl.rewards.answers import keyed, result
from sanarl.rewards.mix import Mix

SPARE = 2
"""Buffers that wait for the next media."""


def read(path: str) -> np.ndarray:
    """The array of an .npy file, mapped and not read: its pages are those that were received. Never a pickle."""
    return np.load(path, mmap_mode="c", allow_pickle=False)  # "c": ours to write, in our own copy


class Buffers:
    """Memory for media on the CPU, used again: getting 300 MB of the system anew takes longer than to fill them."""

    def __init__(self) -> None:
        self._spare: list[Tensor] = []

    def get(self, shape: torch.Size, device: torch.device) -> Tensor:
        """A float32 tensor with any values."""
        count = shape.numel()
        for place, spare in enumerate(self._spare):
            if device.type == "cpu" and count <= spare.numel() < 4 * count:
                return self._spare.pop(place)[:count].view(shape)
        return torch.empty(shape, device=device)

    def put_back(self, media: Tensor) -> None:
        """Take media that nobody looks at any more."""
        if media.device.type == "cpu":
            whole = torch.empty(0).set_(media.untyped_storage())
            self._spare = [whole, *self._spare][:SPARE]


def media_of(array: np.ndarray, media_type: str, device: torch.device, buffers: Buffers) -> Tensor:
    """Wire media, uint8 (B, H, W, 3) or (B, 3, T, H, W), as (B, F, 3, H, W) float32 in [0, 1]."""
    pixels = torch.from_numpy(array).to(device)
    pixels = pixels.permute(0, 3, 1, 2).unsqueeze(1) if media_type == "image" else pixels.transpose(1, 2)
    media = buffers.get(pixels.shape, device)
    for sample, row in zip(media, pixels, strict=True):  # one at a time stays in the cache
        sample.copy_(row).div_(255)
    return media


def device_of(name: str) -> torch.device:
    """The device of a configuration; unset: cuda where there is one.

    Raises:
        UserError: when it is not there.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from error
    return device


class Scorer:
    """One reward, loaded once.

    Args:
        spec: ``reward_type``, ``label`` (what requests call it), ``options`` and ``arguments`` of the configuration.

    Raises:
        UserError: when there is no such reward or it cannot be loaded.
    """

    def __init__(self, spec: dict[str, Any]):
        self.label: str = spec["label"]
        options = dict(spec["options"])
        self.device = device_of(options.get("device", ""))
        self.buffers = Buffers()
        self.mix, unused = _mix(spec["reward_type"], self.label, options, spec["arguments"])
        unused = [name for name in unused if name != "device"]  # the media lie there
        self.notes = [f"{self.label} takes no {', '.join(unused)}; it has no effect"] if unused else []

    def load(self, job: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """The media of a job, and what the answer says about them."""
        array = read(job["path"])
        info = {
            "shape": list(array.shape),
            "dtype": f"torch.{array.dtype}",
            "min": f"{float(array.min()):.3f}",
            "max": f"{float(array.max()):.3f}",
        }
        return media_of(array, job["media_type"], self.device, self.buffers), info

    def free(self, loaded: tuple[Tensor, dict[str, Any]]) -> None:
        """Take back what was loaded, once it is scored."""
        self.buffers.put_back(loaded[0])

    def work(self, job: dict[str, Any], loaded: tuple[Tensor, dict[str, Any]]) -> dict[str, Any]:
        """Score a job: its result as JSON text, or the error."""
        media, info = loaded
        started = time.perf_counter()
        try:
            strict = job["only_strict"]
            scores = self.mix(media, job["prompts"], job["metadata"], only_strict=strict)
            seconds = time.perf_counter() - started
            parts = {name: [float(value) for value in values.tolist()] for name, values in scores.parts.items()}
            keys = keyed(self.label, parts, job["metadata"], strict)
            text = result(self.label, keys, info, seconds, job["decoded"])
        except (UserError, ValueError) as error:
            return {"error": str(error)}
        except Exception as error:
            return {"error": f"reward {self.label!r} failed: {where(error)}"}
        return {"result": text, "seconds": seconds}


def _mix(reward_type: str, label: str, options: dict[str, str], arguments: dict[str, Any]) -> tuple[Mix, list[str]]:
    """The reward as the only part of a mix, and the options that it does not take; it must take the arguments."""
    target = TABLE.get(reward_type, reward_type)
    module, colon, attribute = target.rpartition(":")
    found = getattr(import_named(module), attribute, None) if colon else None
    parameters = inspect.signature(found).parameters if inspect.isclass(found) else {}
    taken = {name: value for name, value in options.items() if name in parameters} | arguments
    (_, reward) = next(iter(build({reward_type: 1.0}, {reward_type: taken} if taken else None).parts.values()))
    return Mix({label: (1.0, reward)}), [name for name in options if name not in taken]


class Decoder:
    """Wan's VAE: latents (B, C, T, H, W) into clips, uint8 (B, 3, F, H', W').

    Args:
        spec: ``model_path``, ``dtype`` and ``device`` of the configuration.

    Raises:
        UserError: when it cannot be loaded.
    """

    def __init__(self, spec: dict[str, Any]):
        self.notes: list[str] = []
        self.device = device_of(spec["device"])
        self.dtype = getattr(torch, spec["dtype"], None)
        if not isinstance(self.dtype, torch.dtype):
            raise UserError(f"decode_args.dtype: found {spec['dtype']!r}; accepted: float32, bfloat16, float16")
        self.vae = _load_vae(spec["model_path"], self.dtype).to(self.device).eval()

    def load(self, job: dict[str, Any]) -> Tensor:
        """Latents of a job, float32 on the device; uint8 is bfloat16 seen as bytes."""
        latents = torch.from_numpy(read(job["path"]))
        if latents.dtype == torch.uint8:
            latents = latents.contiguous().view(torch.bfloat16)
        else:
            latents = latents.to(torch.bfloat16)  # as the peers do
        return latents.to(self.device, torch.float32)

    def free(self, latents: Tensor) -> None:
        """Nothing is kept."""

    @torch.no_grad()
    def work(self, job: dict[str, Any], latents: Tensor) -> dict[str, Any]:
        """Decode into the job's second file."""
        started = time.perf_counter()
        try:
            config = self.vae.config
            shape = (1, -1, 1, 1, 1)
            mean = torch.tensor(config.latents_mean, device=self.device).view(shape)
            std = torch.tensor(config.latents_std, device=self.device).view(shape)
            clips = [self.vae.decode((one[None] * std + mean).to(self.dtype)).sample for one in latents]
            media = torch.cat(clips).float()  # (B, 3, F, H, W) in [-1, 1]
            if not math.isfinite(float(media.sum())):
                return {"error": "the latents decode to NaN or infinity"}
            pixels = ((1 + media.clamp(-1, 1)) / 2 * 255).to(torch.uint8)  # cut off, not rounded: as the peers do
            with open(job["decoded_path"], "wb") as file:
                np.save(file, pixels.cpu().numpy(), allow_pickle=False)
        except Exception as error:
            return {"error": f"the latents cannot be decoded: {where(error)}"}
        return {"result": job["decoded_path"], "seconds": time.perf_counter() - started}


def _load_vae(path: str, dtype: torch.dtype) -> Any:
    from pathlib import Path

    from diffusers import AutoencoderKLWan

    below = "vae" if (Path(path) / "vae").is_dir() else None
    try:
        return AutoencoderKLWan.from_pretrained(path, subfolder=below, torch_dtype=dtype)
    except (OSError, ValueError) as error:
        text = f"decode_args.model_path: found {path}, which does not load: {str(error).splitlines()[0]}"
        raise UserError(f"{text}; accepted: a folder or repository with Wan's VAE as diffusers has it") from error
