"""Object detectors of transformers and torchvision behind one interface."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from sanarl.errors import UserError
from sanarl.importing import nearest
from sanarl.rewards.frames import dtype_named
from sanarl.rewards.weights import FOLDER

LOWEST = 0.3
"""Detections below are never looked at."""

# What GenEval calls classes that detectors call otherwise.
NAMES = {
    "mouse": "computer mouse",
    "remote": "tv remote",
    "keyboard": "computer keyboard",
    "aeroplane": "airplane",
    "motorbike": "motorcycle",
    "sofa": "couch",
    "pottedplant": "potted plant",
    "diningtable": "dining table",
    "tvmonitor": "tv",
    "hair dryer": "hair drier",
}


@dataclass(frozen=True, eq=False)
class Detection:
    """An object in a picture.

    Attributes:
        label: Its class, as GenEval calls it.
        score: How sure the detector is, 0 to 1.
        box: Left, top, right, bottom, in pixels.
        mask: (H, W) bool over the whole picture; None where the detector gives boxes only.
    """

    label: str
    score: float
    box: tuple[float, float, float, float]
    mask: Tensor | None = None

    @property
    def centre(self) -> tuple[float, float]:
        """Of the box."""
        left, top, right, bottom = self.box
        return (left + right) / 2, (top + bottom) / 2

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the box."""
        left, top, right, bottom = self.box
        return abs(right - left), abs(bottom - top)


class Detector(Protocol):
    """What finds objects: called with uint8 (N, 3, H, W), it gives the detections of each picture.

    ``labels``, where there is such an attribute, are the classes that it can find.
    """

    def __call__(self, frames: Tensor) -> list[list[Detection]]:
        """The objects of each picture."""
        ...


def _named(labels: Sequence[str]) -> list[str]:
    return [NAMES.get(label, label) for label in labels]


class TransformersDetector:
    """A model of transformers: Mask2Former and its kin (masks), or any for object detection (boxes only).

    Args:
        folder: With config.json, weights and preprocessor_config.json.
        device: Where to compute; None: where the pictures are.
        dtype: Of weights and arithmetic.
    """

    def __init__(self, folder: Path, device: str | None = None, dtype: str = "float32"):
        from transformers import AutoConfig, AutoImageProcessor
        from transformers import AutoModelForObjectDetection as Boxes
        from transformers import AutoModelForUniversalSegmentation as Masks

        self.device = None if device is None else torch.device(device)
        self.masks = any("Segmentation" in one for one in AutoConfig.from_pretrained(folder).architectures or ())
        try:
            model = (Masks if self.masks else Boxes).from_pretrained(folder, dtype=dtype_named(dtype))
        except ValueError as error:
            raise UserError(f"geneval: {folder} holds no detector: {' '.join(str(error).split())[:200]}") from error
        self.model = model.eval().requires_grad_(False)
        self.processor = AutoImageProcessor.from_pretrained(folder)
        labels = self.model.config.id2label
        self.labels = _named([labels[i] for i in sorted(labels)])

    @torch.no_grad()
    def __call__(self, frames: Tensor) -> list[list[Detection]]:
        """The objects of each picture (N, 3, H, W)."""
        device = self.device or frames.device
        if self.model.device != device:
            self.model.to(device)
        given = self.processor(images=list(frames.to(device)), return_tensors="pt", input_data_format="channels_first")
        given = {k: v.to(device, self.model.dtype if v.is_floating_point() else None) for k, v in given.items()}
        output = self.model(**given)
        sizes = [tuple(frames.shape[-2:])] * len(frames)
        return self._instances(output, sizes) if self.masks else self._boxes(output, sizes)

    def _boxes(self, output: Any, sizes: list[Any]) -> list[list[Detection]]:
        results = self.processor.post_process_object_detection(output, threshold=LOWEST, target_sizes=sizes)
        return [
            [
                Detection(self.labels[label], score, tuple(box))
                for label, score, box in zip(
                    r["labels"].tolist(), r["scores"].tolist(), r["boxes"].tolist(), strict=True
                )
            ]
            for r in results
        ]

    def _instances(self, output: Any, sizes: list[Any]) -> list[list[Detection]]:
        # transformers puts the maps together on the CPU
        output.class_queries_logits = output.class_queries_logits.float().cpu()
        output.masks_queries_logits = output.masks_queries_logits.float().cpu()
        results = self.processor.post_process_instance_segmentation(
            output, threshold=LOWEST, target_sizes=sizes, return_binary_maps=True
        )
        found = []
        for result in results:
            infos, maps = result["segments_info"], result["segmentation"]
            masks = [maps[i].bool().cpu() for i in range(len(infos))]
            found.append(
                [
                    Detection(self.labels[info["label_id"]], info["score"], around(mask), mask)
                    for info, mask in zip(infos, masks, strict=True)
                ]
            )
        return found


def around(mask: Tensor) -> tuple[float, float, float, float]:
    """The box around a mask that is not empty; right and bottom are one past the last pixel."""
    rows, columns = mask.any(1).nonzero()[:, 0].tolist(), mask.any(0).nonzero()[:, 0].tolist()
    return float(columns[0]), float(rows[0]), columns[-1] + 1.0, rows[-1] + 1.0


class TorchvisionDetector:
    """A detector of torchvision by the name of its function, such as maskrcnn_resnet50_fpn_v2, with COCO weights.

    Args:
        name: The function.
        weights: A file with its values; None: searched in ./reward_ckpts and torch's cache.
        device: Where to compute; None: where the pictures are.
    """

    def __init__(self, name: str, weights: str | None = None, device: str | None = None):
        from torchvision import models

        known = models.list_models(module=models.detection)
        if name not in known:
            raise UserError(f"geneval: torchvision has no detector {name!r}{nearest(name, known)}; accepted: {known}")
        published = models.get_model_weights(name).DEFAULT
        self.device = None if device is None else torch.device(device)
        state = torch.load(_torchvision_file(published.url, weights), map_location="cpu", weights_only=True)
        self.categories = _named(published.meta["categories"])
        self.model = models.get_model(name, weights=None, weights_backbone=None, num_classes=len(self.categories))
        self.model.load_state_dict(state)
        self.model.eval().requires_grad_(False)
        self.labels = [label for label in self.categories if label not in ("__background__", "N/A")]

    @torch.no_grad()
    def __call__(self, frames: Tensor) -> list[list[Detection]]:
        """The objects of each picture (N, 3, H, W)."""
        device = self.device or frames.device
        self.model.to(device)
        found = []
        for result in self.model(list(frames.to(device).float() / 255)):
            kept = (result["scores"] >= LOWEST).nonzero()[:, 0].tolist()
            found.append([self._detection(result, row) for row in kept])
        return found

    def _detection(self, result: dict[str, Tensor], row: int) -> Detection:
        mask = (result["masks"][row, 0] > 0.5).cpu() if "masks" in result else None
        label = self.categories[int(result["labels"][row])]
        left, top, right, bottom = result["boxes"][row].tolist()
        return Detection(label, float(result["scores"][row]), (left, top, right, bottom), mask)


def _torchvision_file(url: str, weights: str | None) -> Path:
    name = url.rpartition("/")[2]
    cache = Path(torch.hub.get_dir()) / "checkpoints"
    places = [Path(weights).expanduser()] if weights is not None else [FOLDER / name, cache / name]
    for place in places:
        if place.is_file() and place.stat().st_size:
            return place
    searched = ", ".join(str(place) for place in places)
    raise UserError(
        f"the weights of geneval's detector are missing: {name}\n  searched: {searched}\n"
        f"  to have them: download {url} into {cache} (the name holds the start of its SHA-256)"
    )
