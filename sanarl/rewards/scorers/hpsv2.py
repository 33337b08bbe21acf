"""HPSv2: human preference by a CLIP ViT-H/14 of open_clip with the HPSv2 checkpoint."""

from typing import Any

import torch
from torch import Tensor

from sanarl.errors import UserError
from sanarl.rewards import weights
from sanarl.rewards.frames import dtype_named, each_once, framewise, over_frames_named
from sanarl.rewards.packages import required

VERSIONS = {"v2.1": (weights.HPS_V21, "hpsv2"), "v2.0": (weights.HPS_V2, "hpsv2_v2.0")}

_MEAN = (0.48145466, 0.4578275, 0.40821073)  # CLIP's, for checkpoints that state none
_STD = (0.26862954, 0.26130258, 0.27577711)


class HPSv2:
    """Human Preference Score v2 and v2.1 (Wu et al. 2023, https://github.com/tgxs002/HPSv2).

    Scale: the cosine of image and text, usually 0.2 to 0.35. Preprocessing as published: the longer side is resized to
    224 (bicubic, antialiased), the rest is padded with black, then normalised. The checkpoint holds the whole model;
    open_clip_pytorch_model.bin, which others load first, is not needed.

    Args:
        model_path: The checkpoint file, its folder or a hub id; None: searched.
        version: "v2.1" or "v2.0": which checkpoint.
        device: Where to compute; None: where the pictures are.
        dtype: float32, bfloat16 or float16.
        batch_size: Pictures of one forward pass.
        frames: Frames of a clip that are scored.
        over_frames: What their scores become: "mean" or "min".
        architecture: open_clip's name of the model.
    """

    def __init__(
        self,
        model_path: str | None = None,
        version: str = "v2.1",
        device: str | None = None,
        dtype: str = "float32",
        batch_size: int = 16,
        frames: int = 8,
        over_frames: str = "mean",
        architecture: str = "ViT-H-14",
    ):
        if version not in VERSIONS:
            raise UserError(f"hpsv2: found version {version!r}; accepted: {', '.join(VERSIONS)}")
        wanted, name = VERSIONS[version]
        checkpoint = weights.file(wanted, name, model_path)
        open_clip = required("open_clip", "open-clip-torch", "hpsv2")
        self.dtype = dtype_named(dtype)
        self.device = None if device is None else torch.device(device)
        self.model = open_clip.create_model(architecture, load_weights=False, output_dict=True)
        try:
            self.model.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"])
        except Exception as error:
            raise UserError(f"hpsv2: {checkpoint} is no HPSv2 checkpoint of {architecture}: {error}") from error
        self.model.eval().requires_grad_(False).to(self.dtype)
        self.tokenizer = open_clip.get_tokenizer(architecture)
        self.batch_size, self.frames, self.over = batch_size, frames, over_frames_named(over_frames)

    @torch.no_grad()
    def __call__(self, media: Tensor, prompts: list[str], metadata: list[dict[str, Any]]) -> Tensor:  # noqa: ARG002
        """(B,) float32 for media (B, F, 3, H, W) in [0, 1]; clips are scored frame by frame."""
        return framewise(media, prompts, self.frames, self.batch_size, self._score, self.over)

    def _score(self, frames: Tensor, prompts: list[str]) -> Tensor:
        device = self.device or frames.device
        if self.model.logit_scale.device != device:
            self.model.to(device)
        pixels = self._pixels(frames.to(device)).to(self.dtype)
        images = self.model.encode_image(pixels, normalize=True).float()

        def encode(texts: list[str]) -> Tensor:
            return self.model.encode_text(self.tokenizer(texts).to(device), normalize=True).float()

        return (images * each_once(prompts, encode)).sum(-1)

    def _pixels(self, frames: Tensor) -> Tensor:
        """uint8 (N, 3, H, W) -> (N, 3, S, S): the whole picture, its longer side S, black around it."""
        from torchvision.transforms import InterpolationMode, functional

        size = self.model.visual.image_size
        size = size if isinstance(size, int) else size[0]
        height, width = frames.shape[-2:]
        scale = size / max(height, width)
        target = [round(height * scale), round(width * scale)]
        pixels = frames.float() / 255
        if scale != 1:
            pixels = functional.resize(pixels, target, InterpolationMode.BICUBIC, antialias=True)
        above, left = (size - target[0]) // 2, (size - target[1]) // 2
        pixels = functional.pad(pixels, [left, above, size - target[1] - left, size - target[0] - above])
        mean, std = (getattr(self.model.visual, name, None) for name in ("image_mean", "image_std"))
        return functional.normalize(pixels, list(mean or _MEAN), list(std or _STD))
