"""LAION's aesthetic predictor: how much people like a picture, whatever it shows."""

from collections import OrderedDict
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from sanarl.errors import UserError
from sanarl.rewards import weights
from sanarl.rewards.frames import framewise, over_frames_named
from sanarl.rewards.scorers.clip import Clip, local


class Aesthetic:
    """The improved aesthetic predictor (Schuhmann 2022): layers on the picture's features of CLIP ViT-L/14.

    Scale: people's ratings from 1 to 10, usually 4 to 7.5. Preprocessing is CLIP's own; the prompt is not looked at.

    Args:
        model_path: The layers' file, its folder or a hub id; None: searched.
        clip_path: Folder or hub id of openai/clip-vit-large-patch14; None: searched.
        device: Where to compute; None: where the pictures are.
        dtype: float32, bfloat16 or float16, of CLIP; the layers stay in float32.
        batch_size: Pictures of one forward pass.
        frames: Frames of a clip that are scored.
        over_frames: What their scores become: "mean" or "min".
    """

    def __init__(
        self,
        model_path: str | None = None,
        clip_path: str | None = None,
        device: str | None = None,
        dtype: str = "float32",
        batch_size: int = 16,
        frames: int = 8,
        over_frames: str = "mean",
    ):
        file = weights.file(weights.AESTHETIC, "aesthetic", model_path)
        folder = weights.folder(weights.CLIP_L, "aesthetic", clip_path or local(model_path))
        self.clip = Clip(folder, folder, dtype, device)
        self.layers = _layers(self.clip.model.config.projection_dim)
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
            self.layers.load_state_dict({key.removeprefix("layers."): value for key, value in state.items()})
        except Exception as error:
            raise UserError(f"aesthetic: {file} does not hold the predictor's layers: {error}") from error
        self.layers.eval().requires_grad_(False)
        self.batch_size, self.frames, self.over = batch_size, frames, over_frames_named(over_frames)

    @torch.no_grad()
    def __call__(self, media: Tensor, prompts: list[str], metadata: list[dict[str, Any]]) -> Tensor:  # noqa: ARG002
        """(B,) float32 for media (B, F, 3, H, W) in [0, 1]; clips are scored frame by frame."""
        return framewise(media, prompts, self.frames, self.batch_size, self._score, self.over)

    def _score(self, frames: Tensor, prompts: list[str]) -> Tensor:  # noqa: ARG002
        features = self.clip.image_features(self.clip.pixels(frames))
        return self.layers.to(features.device)(features)[:, 0]


def _layers(features: int) -> nn.Sequential:
    """The published layers; nothing stands between them, and dropout does nothing when it predicts."""
    widths = (features, 1024, 128, 64, 16, 1)
    places = ("0", "2", "4", "6", "7")  # dropout had the others
    layers = zip(places, pairwise(widths), strict=True)
    return nn.Sequential(OrderedDict((place, nn.Linear(before, after)) for place, (before, after) in layers))
