"""The shapes world as a data set: pictures or clips with captions for SFT, captions alone for RL and validation.

Video configurations get the world in motion.

Nothing is read from disk: item i is a pure function of i, drawn when it is taken.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from sanarl.errors import UserError
from sanarl.shapes import captions, clips, drawing, motion

if TYPE_CHECKING:
    from sanarl.config import Config
    from sanarl.config.schema.base import Dataset

NUM_MEDIA = 4096
NUM_PROMPTS = 2048
NUM_VALIDATION = 256


class Drawn(Sequence[dict[str, Any]]):
    """SFT items of the training captions: ``{"prompt", "media" (frames, 3, size, size)}``.

    Args:
        size: Side of the pictures in pixels.
        frames: 1 for pictures; of clips at least 2.
        n: How many items there are.
    """

    def __init__(self, size: int = drawing.SIZE, frames: int = 1, n: int = NUM_MEDIA):
        self.size, self.frames, self.n = size, frames, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Any]:  # type: ignore[override]  # slices are not offered
        if not -self.n <= index < self.n:
            raise IndexError(f"item {index} of {self.n}")
        if self.frames == 1:
            rng = random.Random(f"shapes picture {index % self.n}")  # a string seed is hashed, everywhere the same
            prompt = captions.sample(captions.split("train"), 1, rng)[0]
            drawn = drawing.render(prompt, rng, self.size)[None]
        else:
            rng = random.Random(f"shapes clip {index % self.n}")
            prompt = motion.sample(motion.split("train"), 1, rng)[0]
            drawn = clips.render(prompt, rng, self.frames, self.size)
        return {"prompt": prompt, "media": torch.from_numpy(drawn).permute(0, 3, 1, 2).float() / 255}  # (F, H, W, 3)


def get_dataset(config: Config) -> Sequence[dict[str, Any]]:
    """4096 pictures or clips with captions for SFT, 2048 captions for RL, of the split "train" in the mix of kinds.

    Raises:
        UserError: If policy.diffusers.inference_size is not a square of at least 32 pixels, a clip has fewer than 5
            frames, or the dataset's keys ask for another data set or for something else than its split "train".
    """
    _split(config.train.train_policy.dataset, "train.train_policy.dataset", ("train",))
    if config.train.train_policy.type == "sft":
        return Drawn(_side(config), _frames(config))
    world = _world(config)
    prompts = world.sample(world.split("train"), NUM_PROMPTS, random.Random("shapes prompts"))
    return [{"prompt": prompt, "metadata": {}} for prompt in prompts]


def get_val_dataset(config: Config) -> Sequence[dict[str, Any]]:
    """A fixed, balanced list of captions of the split in validation.dataset.split: "dev" unless it says "test".

    There are validation.num_prompts of them, 256 when that is not set.

    Raises:
        UserError: If there is no such split, or the dataset's keys ask for another data set.
    """
    which = _split(config.validation.dataset, "validation.dataset", ("dev", "test", "train"))
    prompts = _world(config).balanced(which, config.validation.num_prompts or NUM_VALIDATION)
    if config.policy.diffusers.image_to_video:
        return [{"prompt": prompt, "media": _start(prompt, i, _side(config))} for i, prompt in enumerate(prompts)]
    return [{"prompt": prompt, "metadata": {}} for prompt in prompts]


def _start(prompt: str, index: int, size: int) -> torch.Tensor:
    """The first frame (1, 3, size, size) of a clip that shows held-out prompt number ``index``."""
    drawn = clips.render(prompt, random.Random(f"shapes start {index}"), 2, size)[:1]
    return torch.from_numpy(drawn).permute(0, 3, 1, 2).float() / 255


def _world(config: Config) -> ModuleType:
    """Whose captions are asked for: those of pictures, or of clips."""
    return motion if config.modality == "video" else captions


def _split(dataset: Dataset, key: str, accepted: tuple[captions.Split, ...]) -> captions.Split:
    """The split that was asked for; the first of those accepted when none was."""
    for name, found, known in (("name", dataset.name, ("", "shapes")), ("local_dir", dataset.local_dir, ("",))):
        if found not in known:
            raise UserError(f"{key}.{name}: found {found!r}; the shapes are drawn and read from nowhere; leave it out")
    value = dataset.split
    wanted = [value] if isinstance(value, str) else list(value)
    names = [name for name in wanted if name] or [accepted[0]]
    for name in accepted:
        if names == [name]:
            return name
    raise UserError(f"{key}.split: found {value!r}; accepted for shapes: {', '.join(map(repr, accepted))}")


def _side(config: Config) -> int:
    height, width = config.policy.diffusers.inference_size
    if height != width or height < 32:
        found = f"found [{height}, {width}]"
        raise UserError(f"policy.diffusers.inference_size: {found}; accepted for shapes: a square of 32 or more")
    return int(height)


def _frames(config: Config) -> int:
    if config.modality == "video" and config.item_frames < 2:
        raise UserError(
            f"policy.diffusers.train_frames: found {config.item_frames}; accepted for shapes in motion: 5 or more"
        )
    return config.item_frames
