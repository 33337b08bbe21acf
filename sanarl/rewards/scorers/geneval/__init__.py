"""GenEval: are the objects that a prompt asks for in the picture, as many, of that colour and in that place."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sanarl.errors import UserError
from sanarl.rewards import weights
from sanarl.rewards.frames import framewise, over_frames_named
from sanarl.rewards.scorers.clip import Clip
from sanarl.rewards.scorers.geneval.detectors import Detection, Detector, TorchvisionDetector, TransformersDetector
from sanarl.rewards.scorers.geneval.rules import COLORS, TAGS, checked, graded, published, sorted_out

__all__ = ["COLORS", "TAGS", "Classifier", "ClipColours", "Detection", "Detector", "GenEval"]

Classifier = Callable[[str, list[Tensor]], list[str]]
"""Class and crops, uint8 (3, h, w) each -> the colour of each, one of ``COLORS``."""

GREY = 0x99  # what replaces everything outside a mask


class GenEval:
    """GenEval (Ghosh et al. 2023, https://github.com/djghosh13/geneval) with a detector of transformers or torchvision.

    Scale: ``reward`` is the graded score, at most 1 and below 0 only when far too many objects are found;
    ``gen_eval_strict`` is 1 where everything is exactly as asked, ``gen_eval_reward`` 1 where the published rules are
    met (at least so many, nothing excluded). Objects count above a score of 0.3, for counting above 0.9. The detector
    is the published one, Mask2Former with Swin-S on COCO, in transformers' form; colours are CLIP ViT-L/14's over the
    masked crop.

    Args:
        model_path: A folder that holds both models under their names, looked into first.
        detector: Hub id or folder of a detector of transformers, "torchvision:NAME", or an object called as
            :class:`Detector` says; None: Mask2Former, searched.
        detector_path: The weights of a torchvision detector.
        classifier: Hub id or folder of a CLIP model, or a function as :data:`Classifier` says; None: searched.
        device: Where to compute; None: where the pictures are.
        dtype: float32, bfloat16 or float16; torchvision's detectors stay in float32.
        batch_size: Pictures that the detector gets at once.
        frames: Frames of a clip that are scored.
        over_frames: What their scores become: "mean" or "min".
        only_strict: Leave ``gen_eval_reward`` out; None: as the caller asks, in training but not in evaluation.
        threshold: The detector's score above which objects count.
        counting_threshold: The same for prompts that are about a number.
    """

    def __init__(
        self,
        model_path: str | None = None,
        detector: str | Detector | None = None,
        detector_path: str | None = None,
        classifier: str | Classifier | None = None,
        device: str | None = None,
        dtype: str = "float32",
        batch_size: int = 8,
        frames: int = 8,
        over_frames: str = "mean",
        only_strict: bool | None = None,
        threshold: float = 0.3,
        counting_threshold: float = 0.9,
    ):
        if model_path is not None and not Path(model_path).expanduser().is_dir():
            raise UserError(f"geneval: found model_path {model_path!r}; accepted: a folder that holds both models")
        if isinstance(detector, str) and detector.startswith("torchvision:"):
            detector = TorchvisionDetector(detector.partition(":")[2], detector_path, device)
        elif detector is None or isinstance(detector, str):
            detector = TransformersDetector(
                weights.folder(weights.MASK2FORMER, "geneval", detector or model_path), device, dtype
            )
        if classifier is None or isinstance(classifier, str):
            classifier = ClipColours(classifier or model_path, device, dtype)
        self.detector, self.classifier = detector, classifier
        self.batch_size, self.frames, self.only_strict = batch_size, frames, only_strict
        self.over = over_frames_named(over_frames)
        self.threshold, self.counting_threshold = threshold, counting_threshold

    @torch.no_grad()
    def __call__(
        self, media: Tensor, prompts: list[str], metadata: list[dict[str, Any]], only_strict: bool = False
    ) -> dict[str, Tensor]:
        """Score pictures; clips frame by frame.

        Args:
            media: (B, F, 3, H, W) in [0, 1].
            prompts: B prompts, for messages only.
            metadata: B dicts with ``tag``, ``include`` and perhaps ``exclude``, as GenEval's files have them.
            only_strict: Leave ``gen_eval_reward`` out, unless this scorer was made to say otherwise.

        Returns:
            {"reward": (B,), "gen_eval_strict": (B,), "gen_eval_reward": (B,)}, the last unless ``only_strict``.

        Raises:
            UserError: For metadata that are not GenEval's.
        """
        labels = getattr(self.detector, "labels", None)
        for prompt, one in zip(prompts, metadata, strict=True):
            try:
                checked(one, labels)
            except UserError as error:
                raise UserError(f"prompt {prompt!r}: {error}") from error
        only_strict = only_strict if self.only_strict is None else self.only_strict
        if not prompts:
            rows = torch.zeros(0, 3)
        else:
            score = partial(self._score, only_strict=only_strict)
            rows = framewise(media, metadata, self.frames, self.batch_size, score, self.over)
        names = ("reward", "gen_eval_strict", *(() if only_strict else ("gen_eval_reward",)))
        return {name: rows[:, i].clone() for i, name in enumerate(names)}

    def _score(self, frames: Tensor, metadata: list[dict[str, Any]], only_strict: bool) -> Tensor:
        """(N, 3): graded, strict, published."""
        rows = []
        for frame, detections, asked in zip(frames, self.detector(frames), metadata, strict=True):
            threshold = self.counting_threshold if asked["tag"] == "counting" else self.threshold
            found = sorted_out(detections, threshold)
            colours = _Colours(frame, self.classifier)
            strict, score = graded(found, asked, colours)
            passed = False if only_strict else published(found, asked, colours)
            rows.append([score, float(strict), float(passed)])
        return torch.tensor(rows)


class _Colours:
    """The colours of a picture's objects, each asked once."""

    def __init__(self, frame: Tensor, classifier: Classifier):
        self.frame, self.classifier = frame, classifier
        self.known: dict[Detection, str] = {}

    def __call__(self, label: str, objects: Sequence[Detection]) -> list[str]:
        new = [one for one in objects if one not in self.known]
        if new:
            answers = self.classifier(label, [crop(self.frame, one) for one in new])
            self.known |= dict(zip(new, answers, strict=True))
        return [self.known[one] for one in objects]


def crop(frame: Tensor, found: Detection) -> Tensor:
    """An object's box of a picture (3, H, W), grey outside its mask where it has one; at least a pixel."""
    height, width = frame.shape[-2:]
    left, top, right, bottom = (round(edge) for edge in found.box)
    left, top = min(max(left, 0), width - 1), min(max(top, 0), height - 1)
    if found.mask is not None:
        frame = torch.where(
            found.mask.to(frame.device), frame, torch.tensor(GREY, dtype=frame.dtype, device=frame.device)
        )
    return frame[:, top : max(bottom, top + 1), left : max(right, left + 1)]


class ClipColours:
    """Which of ten colours an object has: the nearest to CLIP's mean over three sentences about that class.

    Args:
        model: Hub id or folder of a CLIP model; None: openai/clip-vit-large-patch14, searched.
        device: Where to compute; None: where the pictures are.
        dtype: Of weights and arithmetic.
    """

    def __init__(self, model: str | None = None, device: str | None = None, dtype: str = "float32"):
        folder = weights.folder(weights.CLIP_L, "geneval", model)
        self.clip = Clip(folder, folder, dtype, device)
        self._texts: dict[str, Tensor] = {}

    @torch.no_grad()
    def __call__(self, label: str, crops: list[Tensor]) -> list[str]:
        """The colour of each crop, uint8 (3, h, w), of an object of class ``label``."""
        pixels = torch.cat([self.clip.pixels(one[None]) for one in crops])
        likeness = self.clip.image_features(pixels) @ self._classes(label).to(pixels.device).T
        return [COLORS[row] for row in likeness.argmax(1).tolist()]

    def _classes(self, label: str) -> Tensor:
        """(10, D) of length 1."""
        if label not in self._texts:
            sentences = [
                sentence
                for c in COLORS
                for sentence in (
                    f"a photo of a {c} {label}",
                    f"a photo of a {c}-colored {label}",
                    f"a photo of a {c} object",
                )
            ]
            means = self.clip.text_features(sentences).view(len(COLORS), 3, -1).mean(1)
            self._texts[label] = means / means.norm(dim=-1, keepdim=True)
        return self._texts[label]
