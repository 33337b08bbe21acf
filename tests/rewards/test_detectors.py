"""Detectors of the real classes with random values, biased so that they find something.

Reference: the packages' own models and post-processing, called directly.
"""

import pytest
import torch
from torchvision import models

from sanarl.rewards.scorers.geneval import GenEval
from sanarl.rewards.scorers.geneval.detectors import TorchvisionDetector, TransformersDetector, around

NAME = "fasterrcnn_mobilenet_v3_large_320_fpn"


@pytest.fixture
def frames(pictures):
    return (pictures[:2, 0] * 255).round().to(torch.uint8)


@pytest.fixture(scope="module")
def torchvision_file(tmp_path_factory):
    torch.manual_seed(0)
    model = models.get_model(NAME, weights=None, weights_backbone=None, num_classes=91)
    with torch.no_grad():
        model.roi_heads.box_predictor.cls_score.bias[17] = 5.0  # the class "cat"
    file = tmp_path_factory.mktemp("torchvision") / "detector.pth"
    torch.save(model.state_dict(), file)
    return file


def test_a_detector_of_torchvision(torchvision_file, frames):
    detector = TorchvisionDetector(NAME, str(torchvision_file))
    model = models.get_model(NAME, weights=None, weights_backbone=None, num_classes=91).eval()
    model.load_state_dict(torch.load(torchvision_file))
    assert len(detector.labels) == 80
    assert {"cat", "tv remote", "computer mouse"} <= set(detector.labels)
    found = detector(frames)
    for frame, detections in zip(frames, found, strict=True):
        with torch.no_grad():
            (expected,) = model([frame / 255])
        assert len(detections) == (expected["scores"] >= 0.3).sum() > 0
        assert [d.score for d in detections] == pytest.approx(expected["scores"][: len(detections)].tolist(), rel=1e-4)
        assert {d.label for d in detections} == {"cat"}
        torch.testing.assert_close(
            torch.tensor([d.box for d in detections]), expected["boxes"][: len(detections)], rtol=1e-3, atol=1e-2
        )


def test_geneval_with_a_detector_of_torchvision(torchvision_file, frames):
    """Reference: the count that the detector itself gives."""
    scorer = GenEval(
        detector=f"torchvision:{NAME}",
        detector_path=str(torchvision_file),
        classifier=lambda _label, crops: ["red"] * len(crops),
    )
    counts = [min(16, sum(d.score > 0.3 for d in found)) for found in scorer.detector(frames)]
    metadata = [
        {"tag": "colors", "include": [{"class": "cat", "count": count, "color": colour}]}
        for count, colour in zip(counts, ["red", "blue"], strict=True)
    ]
    scores = scorer((frames / 255)[:, None], ["a", "b"], metadata)
    assert scores["reward"].tolist() == [1.0, 0.5]
    assert scores["gen_eval_strict"].tolist() == [1.0, 0.0]
    assert not scores["reward"].requires_grad


@pytest.fixture(scope="module")
def mask2former(tmp_path_factory):
    from transformers import (
        Mask2FormerConfig,
        Mask2FormerForUniversalSegmentation,
        Mask2FormerImageProcessor,
        SwinConfig,
    )

    backbone = SwinConfig(
        image_size=64,
        embed_dim=16,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        window_size=4,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    labels = {0: "cat", 1: "remote", 2: "dog"}
    config = Mask2FormerConfig(
        backbone_config=backbone,
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=32,
        dim_feedforward=32,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=2,
        num_queries=6,
        id2label=labels,
        label2id={v: k for k, v in labels.items()},
    )
    torch.manual_seed(0)
    model = Mask2FormerForUniversalSegmentation(config)
    with torch.no_grad():
        model.class_predictor.bias.copy_(torch.tensor([0.0, 6.0, 0.0, 0.0]))
    folder = tmp_path_factory.mktemp("mask2former")
    model.save_pretrained(folder)
    Mask2FormerImageProcessor(size={"height": 64, "width": 64}).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mask2former(mask2former, frames, dtype):
    from transformers import Mask2FormerForUniversalSegmentation, Mask2FormerImageProcessor

    detector = TransformersDetector(mask2former, dtype=dtype)
    assert detector.labels == ["cat", "tv remote", "dog"]
    found = detector(frames)
    assert all(detections for detections in found)
    assert {d.label for detections in found for d in detections} == {"tv remote"}
    for one in (d for detections in found for d in detections):
        assert one.mask.shape == frames.shape[-2:]
        assert one.mask.dtype == torch.bool
        assert one.box == around(one.mask)
    if dtype == "float32":
        model = Mask2FormerForUniversalSegmentation.from_pretrained(mask2former).eval()
        processor = Mask2FormerImageProcessor.from_pretrained(mask2former)
        given = processor(images=[f.permute(1, 2, 0).numpy() for f in frames], return_tensors="pt")
        with torch.no_grad():
            output = model(**given)
        scores = output.class_queries_logits.softmax(-1)[..., 1]
        inside = output.masks_queries_logits
        inside = torch.nn.functional.interpolate(inside, (384, 384), mode="bilinear").sigmoid()
        sure = (inside * (inside > 0.5)).sum((2, 3)) / ((inside > 0.5).sum((2, 3)) + 1e-6)
        for row, detections in enumerate(found):
            expected = sorted(s for s in (scores * sure)[row].tolist() if s >= 0.3)
            assert sorted(d.score for d in detections) == pytest.approx(expected, abs=1e-3)


def test_a_detector_of_boxes(tmp_path, frames):
    from transformers import YolosConfig, YolosForObjectDetection, YolosImageProcessor

    size = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    labels = {0: "cat", 1: "mouse"}
    config = YolosConfig(
        image_size=[64, 64],
        patch_size=16,
        num_detection_tokens=3,
        id2label=labels,
        label2id={"cat": 0, "mouse": 1},
        **size,
    )
    model = YolosForObjectDetection(config).eval()
    with torch.no_grad():
        model.class_labels_classifier.layers[-1].bias.copy_(torch.tensor([0.0, 4.0, 0.0]))
    model.save_pretrained(tmp_path)
    processor = YolosImageProcessor(size={"height": 64, "width": 64})
    processor.save_pretrained(tmp_path)
    found = TransformersDetector(tmp_path)(frames)
    given = processor(images=list(frames), return_tensors="pt")
    with torch.no_grad():
        output = model(**given)
    boxes = output.pred_boxes * torch.tensor([56, 40, 56, 40])  # centre, width and height of a 40 x 56 picture
    corners = torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)
    for row, detections in enumerate(found):
        assert {d.label for d in detections} == {"computer mouse"}
        assert len(detections) == 3
        torch.testing.assert_close(torch.tensor([d.box for d in detections]), corners[row], rtol=1e-4, atol=1e-3)


def test_the_box_around_a_mask():
    mask = torch.zeros(10, 12, dtype=torch.bool)
    mask[3:5, 7:9] = True
    assert around(mask) == (7.0, 3.0, 9.0, 5.0)
