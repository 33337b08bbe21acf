"""What a run notes beside its metrics: the rewards of every prompt, and when and where it was started and ended."""

import json
import platform
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from sanarl import __version__
from sanarl.maths.advantage import by_group
from sanarl.runtime.folder import RunFolder
from sanarl.runtime.world import World

PACKAGES = ("torch", "diffusers", "transformers", "peft", "accelerate", "safetensors", "numpy", "pydantic")

Of = Literal["train", "eval"]


@dataclass
class RewardLog:
    """``rewards.jsonl``: a line for every rollout and evaluation, with the mean and deviation of each prompt's rewards.

    ``{"step": 3, "of": "train", "prompt": [0, 4], "size": [8, 8], "mean": [...], "std": [...], "new": {"4": "text"}}``

    ``prompt`` numbers the prompts; the text of one stands under ``new`` in the line that names it first. With several
    rewards ``parts`` holds every one's means under its name. Numbers keep six digits.
    """

    path: Path
    _numbers: dict[str, int] | None = field(default=None, init=False)

    def write(self, step: int, of: Of, prompts: list[str], groups: Tensor, scores: dict[str, Tensor]) -> None:
        """Append the rewards of a step.

        Args:
            step: of the run. of: ``train``: a rollout; ``eval``: the held-out prompts.
            prompts: the prompt of every group number; groups of equal prompts are written as one.
            groups: (B,) int64, group of every sample.
            scores: the total (B,) under ``reward`` and its parts beside it.
        """
        first = {prompt: number for number, prompt in reversed(list(enumerate(prompts)))}
        groups = torch.tensor([first[prompt] for prompt in prompts])[groups]
        numbers, counts = groups.unique(return_counts=True)
        known = self._known()
        texts = [prompts[group] for group in numbers.tolist()]
        new = {known.setdefault(text, len(known)): text for text in texts if text not in known}
        mean, std, _ = by_group(scores["reward"].double(), groups)
        line: dict[str, Any] = {"step": step, "of": of, "prompt": [known[text] for text in texts]}
        line |= {"size": counts.tolist(), "mean": _rounded(mean), "std": _rounded(std)}
        parts = {name: value for name, value in scores.items() if name != "reward"}
        if len(parts) > 1:
            line["parts"] = {name: _rounded(by_group(value.double(), groups)[0]) for name, value in parts.items()}
        if new:
            line["new"] = new
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")

    def _known(self) -> dict[str, int]:
        """Prompt -> its number; what a resumed run has written before is read once."""
        if self._numbers is None:
            self._numbers = {}
            if self.path.is_file():
                for line in self.path.read_text(encoding="utf-8").splitlines():
                    self._numbers |= {text: int(number) for number, text in json.loads(line).get("new", {}).items()}
        return self._numbers


def _rounded(values: Tensor) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]


def started(folder: RunFolder, world: World, step: int, total: int) -> None:
    """Note in ``events.jsonl`` that the run starts, or goes on, after ``step`` of ``total``, and where."""
    device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else platform.machine()
    where = {
        "device": f"{world.size} x {world.device.type}",
        "device_name": device,
        "python": platform.python_version(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
        "packages": {"sanarl": __version__} | {name: found for name in PACKAGES if (found := _version(name))},
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }
    _event(folder, {"event": "start", "step": step, "total": total, **where})


def ended(folder: RunFolder, step: int, why: str) -> None:
    """Note that the run ended after ``step``. A full disk does not hide the error that ended it."""
    with suppress(OSError):
        _event(folder, {"event": "end", "step": step, "why": why})


def _event(folder: RunFolder, document: dict[str, Any]) -> None:
    stamp = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    with open(folder.path / "events.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({**stamp, **document}, ensure_ascii=False) + "\n")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
