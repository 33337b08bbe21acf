"""A reward that notes what it scores in $NOTES and kills its process at call number $LAST, if that is set."""

import os
import signal
from pathlib import Path

import torch

CALLS = []


def redness(media, prompts, _metadata):
    """Mean of red less the mean of blue, (B,)."""
    CALLS.append(len(prompts))
    if len(CALLS) == int(os.environ.get("LAST", 0)):
        if os.environ.get("HOW") == "raise":
            raise OSError("the lights went out")
        os.kill(os.getpid(), signal.SIGKILL)
    scores = (media[:, :, 0] - media[:, :, 2]).mean((1, 2, 3))
    with Path(os.environ["NOTES"]).open("a", encoding="utf-8") as notes:
        notes.writelines(f"{prompt} {score!r}\n" for prompt, score in zip(prompts, scores.tolist(), strict=True))
    return torch.as_tensor(scores)
