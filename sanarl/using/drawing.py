"""Samples of a subject, a mini-batch at a time, cut into the same mini-batches whatever is left to draw."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sanarl.maths import draw
from sanarl.rollout.generate import Sampler, generate
from sanarl.runtime import memory
from sanarl.training import settings
from sanarl.training.fitting import check_fits
from sanarl.using.embedded import Embedded
from sanarl.using.prompts import Prompts
from sanarl.using.subject import Subject


@dataclass(frozen=True)
class Drawing:
    """What is drawn: sample number i is of prompt i // num_samples, from noise that i and the seed name."""

    prompts: Prompts
    num_samples: int
    sampler: Sampler
    seed: int
    source: Embedded

    def __len__(self) -> int:
        return len(self.prompts) * self.num_samples

    @property
    def key(self) -> draw.Key:
        """As in the evaluations of a run with that seed."""
        return settings.evaluation_key(self.seed)

    def batches(self) -> list[list[int]]:
        """The rows of every mini-batch."""
        return [rows.tolist() for rows in torch.arange(len(self)).split(self.sampler.mini_batch)]

    def prompt(self, row: int) -> str:
        """The prompt of a row."""
        return self.prompts.texts[row // self.num_samples]

    def first(self, rows: list[int]) -> Tensor | None:
        """The frames (B, 1, 3, H, W) that the clips of these rows start from, of image-to-video."""
        found = self.prompts.first
        return None if found is None else found[[row // self.num_samples for row in rows]]


def drawing(subject: Subject, prompts: Prompts, num_samples: int, seed: int | None) -> Drawing:
    """As the run's evaluations draw, or the preset of the model says.

    Raises:
        UserError: when a mini-batch cannot fit into memory.
    """
    config, model = subject.config, subject.policy.model
    sampler = settings.evaluation_sampler(config, model.flow_shift)
    at_once = min(sampler.mini_batch, len(prompts) * num_samples)
    check_fits(model, config, at_once, model.transformer.device)
    source = Embedded(subject.policy, prompts.texts)
    return Drawing(prompts, num_samples, sampler, config.train.seed if seed is None else seed, source)


def drawn(
    subject: Subject, which: str, drawing: Drawing, batches: Sequence[list[int]]
) -> Iterator[tuple[list[int], Tensor]]:
    """Draw some of the mini-batches under the values ``which``.

    Yields:
        (rows, media (b, F, 3, H, W)).
    """
    with memory.explained():
        yield from _drawn(subject, which, drawing, batches)


def _drawn(
    subject: Subject, which: str, drawing: Drawing, batches: Sequence[list[int]]
) -> Iterator[tuple[list[int], Tensor]]:
    for rows in batches:
        ids = torch.tensor(rows, dtype=torch.int64)
        prompts = [drawing.prompt(row) for row in rows]
        groups = ids // drawing.num_samples
        asked = (prompts, ids, groups, drawing.sampler, drawing.key, drawing.first(rows))
        with subject.policy.using(subject.values[which]):
            ((_, _, media),) = generate(drawing.source, *asked)
        yield rows, media
