"""Scorers of the tests' services. What they do depends on the prompts only, so that one process serves every test."""

import os
import time
from pathlib import Path

import torch


def redness(media, prompts, metadata):  # noqa: ARG001
    """Mean of the first channel after rounding to 8 bits, exact whatever the batch: whole numbers are summed."""
    pixels = (media[:, :, 0] * 255).round().long().flatten(1)
    return (pixels.sum(1).double() / (255 * pixels.shape[1])).float()


def sluggish(media, prompts, metadata):
    """Redness, after a while."""
    time.sleep(0.2)
    return redness(media, prompts, metadata)


def moody(media, prompts, metadata):
    """Redness, unless a prompt asks for trouble."""
    word, _, where = prompts[0].partition(" ")
    if word == "die":
        os._exit(7)
    if word == "die-once" and not Path(where).exists():
        Path(where).touch()
        os._exit(7)
    if word == "hang":
        time.sleep(3600)
    if word == "slow":
        time.sleep(float(where))
    if word == "raise":
        raise RuntimeError("no such luck")
    scores = redness(media, prompts, metadata)
    if word == "nan":
        scores[0] = float("nan")
    if word == "short":
        return scores[:-1]
    return {"reward": scores, "count": torch.tensor([float(one.get("count", len(one))) for one in metadata])}


def gen_eval(media, prompts, metadata, only_strict):
    """Verdicts as GenEval's scorer gives them: the published one, all 1, when it is asked for."""
    scores = redness(media, prompts, metadata)
    strict = {"reward": scores, "gen_eval_strict": (scores > 0.5).float()}
    return strict if only_strict else strict | {"gen_eval_reward": torch.ones(len(scores))}


class Heavy:
    """A scorer that takes what the service's file says, or cannot be loaded."""

    def __init__(self, model_path=""):
        if model_path == "missing":
            raise FileNotFoundError("no weights in missing")

    def __call__(self, media, prompts, metadata):
        return redness(media, prompts, metadata)
