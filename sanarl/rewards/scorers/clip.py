"""PickScore and CLIPScore: how well a picture fits its prompt, by CLIP models of transformers."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sanarl.rewards import weights
from sanarl.rewards.frames import dtype_named, each_once, framewise, over_frames_named

_TOKENS = 77  # CLIP's longest text


class Clip:
    """A CLIP model with its tokenizer and its preprocessing, moved to the device of what it is given.

    Args:
        model: Folder with config.json and the weights.
        processor: Folder with the tokenizer and preprocessor_config.json.
        dtype: Of weights and arithmetic.
        device: Where to compute; None: where the pictures are.
    """

    def __init__(self, model: Path, processor: Path, dtype: str, device: str | None):
        from transformers import CLIPImageProcessor, CLIPModel, CLIPTokenizer

        self.dtype = dtype_named(dtype)
        self.device = None if device is None else torch.device(device)
        self.model = CLIPModel.from_pretrained(model, dtype=self.dtype).eval().requires_grad_(False)
        self.tokenizer = CLIPTokenizer.from_pretrained(processor)
        self.processor = CLIPImageProcessor.from_pretrained(processor)

    def on(self, frames: Tensor) -> torch.device:
        """Move the model to where it computes, and say where that is."""
        device = self.device or frames.device
        if self.model.device != device:
            self.model.to(device)
        return device

    def pixels(self, frames: Tensor) -> Tensor:
        """uint8 (N, 3, H, W) -> (N, 3, h, w) as the processor says: bicubic resize, centre crop, normalise."""
        images = list(frames.to(self.on(frames)))
        values = self.processor(images=images, return_tensors="pt", input_data_format="channels_first")
        return values["pixel_values"].to(self.dtype)

    def image_features(self, pixels: Tensor) -> Tensor:
        """(N, D) float32 of length 1."""
        return _unit(self.model.get_image_features(pixel_values=pixels))

    def text_features(self, texts: list[str]) -> Tensor:
        """(N, D) float32 of length 1, on the model's device; longer texts are cut at 77 tokens."""
        tokens = self.tokenizer(texts, padding=True, truncation=True, max_length=_TOKENS, return_tensors="pt")
        return _unit(self.model.get_text_features(**tokens.to(self.model.device)))

    def logits(self, pixels: Tensor, texts: list[str]) -> Tensor:
        """exp(logit_scale) times the cosine of each pair, (N,)."""
        images = self.image_features(pixels)
        cosines = (images * each_once(texts, self.text_features)).sum(-1)
        return self.model.logit_scale.float().exp() * cosines


def _unit(features: Any) -> Tensor:
    # transformers 5 wraps what transformers 4 returned as a tensor.
    values = (features if isinstance(features, Tensor) else features.pooler_output).float()
    return values / values.norm(dim=-1, keepdim=True).clamp_min(1e-12)


class PickScore:
    """PickScore v1 (Kirstain et al. 2023, https://github.com/yuvalkirstain/PickScore): which picture people prefer.

    Scale: exp(logit_scale) * cos(image, text) / 26, usually 0.75 to 0.95; Flow-GRPO's and DiffusionNFT's tables show
    the value before the division, 20 to 24. The preprocessing is that of laion/CLIP-ViT-H-14-laion2B-s32B-b79K.

    Args:
        model_path: Folder or hub id of the weights; None: searched.
        processor_path: The same for tokenizer and preprocessing.
        device: Where to compute; None: where the pictures are.
        dtype: float32, bfloat16 or float16.
        batch_size: Pictures of one forward pass.
        frames: Frames of a clip that are scored.
        over_frames: What their scores become: "mean" or "min".
    """

    def __init__(
        self,
        model_path: str | None = None,
        processor_path: str | None = None,
        device: str | None = None,
        dtype: str = "float32",
        batch_size: int = 16,
        frames: int = 8,
        over_frames: str = "mean",
    ):
        model = weights.folder(weights.PICKSCORE, "pickscore", model_path)
        processor = weights.folder(weights.CLIP_H_PROCESSOR, "pickscore", processor_path or local(model_path))
        self.clip = Clip(model, processor, dtype, device)
        self.batch_size, self.frames, self.over = batch_size, frames, over_frames_named(over_frames)

    @torch.no_grad()
    def __call__(self, media: Tensor, prompts: list[str], metadata: list[dict[str, Any]]) -> Tensor:  # noqa: ARG002
        """(B,) float32 for media (B, F, 3, H, W) in [0, 1]; clips are scored frame by frame."""
        return framewise(media, prompts, self.frames, self.batch_size, self._score, self.over)

    def _score(self, frames: Tensor, prompts: list[str]) -> Tensor:
        return self.clip.logits(self.clip.pixels(frames), prompts) / 26


class ClipScore:
    """CLIPScore as Flow-GRPO and Sol-RL compute it: openai/clip-vit-large-patch14, logits / 30.

    Scale: exp(logit_scale) * cos(image, text) / 30, usually 0.5 to 1.1. The resize is bilinear with antialiasing,
    unlike CLIP's own bicubic (https://github.com/yifan123/flow_grpo, clip_scorer.py).

    Args:
        model_path: Folder or hub id of the weights; None: searched.
        device: Where to compute; None: where the pictures are.
        dtype: float32, bfloat16 or float16.
        batch_size: Pictures of one forward pass.
        frames: Frames of a clip that are scored.
        over_frames: What their scores become: "mean" or "min".
    """

    def __init__(
        self,
        model_path: str | None = None,
        device: str | None = None,
        dtype: str = "float32",
        batch_size: int = 16,
        frames: int = 8,
        over_frames: str = "mean",
    ):
        found = weights.folder(weights.CLIP_L, "clipscore", model_path)
        self.clip = Clip(found, found, dtype, device)
        self.batch_size, self.frames, self.over = batch_size, frames, over_frames_named(over_frames)

    @torch.no_grad()
    def __call__(self, media: Tensor, prompts: list[str], metadata: list[dict[str, Any]]) -> Tensor:  # noqa: ARG002
        """(B,) float32 for media (B, F, 3, H, W) in [0, 1]; clips are scored frame by frame."""
        return framewise(media, prompts, self.frames, self.batch_size, self._score, self.over)

    def _score(self, frames: Tensor, prompts: list[str]) -> Tensor:
        from torchvision.transforms import functional

        size, crop = self.clip.processor.size, self.clip.processor.crop_size
        device = self.clip.on(frames)
        pixels = functional.resize(frames.to(device).float() / 255, [size["shortest_edge"]], antialias=True)
        pixels = functional.center_crop(pixels, [crop["height"], crop["width"]])
        pixels = functional.normalize(pixels, self.clip.processor.image_mean, self.clip.processor.image_std)
        return self.clip.logits(pixels.to(self.clip.dtype), prompts) / 30


def local(model_path: str | None) -> str | None:
    """A model_path that is a place, for other weights that may lie beside the first."""
    return model_path if model_path is not None and Path(model_path).expanduser().exists() else None
