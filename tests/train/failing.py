"""Redness of pictures that tells what it was called for, and fails once when it is told to.

FAIL_AT=N: the N-th call for an evaluation fails. CALLS=PATH: a line a call, "training" or "evaluation".
"""

import os


def redness(media, _prompts, _metadata, only_strict):
    """How much redder than green the first frame is, (B,)."""
    path = os.environ["CALLS"]
    with open(path, "a", encoding="utf-8") as calls:
        calls.write("training\n" if only_strict else "evaluation\n")
    with open(path, encoding="utf-8") as calls:
        count = calls.read().split().count("evaluation")
    if not only_strict and count == int(os.environ.get("FAIL_AT", "0")):
        raise RuntimeError("no such luck")
    return (media[:, 0, 0] - media[:, 0, 1]).mean((1, 2))
