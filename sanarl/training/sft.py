"""Supervised fine-tuning.

config -> data -> policy -> loss terms -> optimiser -> checkpoint
"""

from dataclasses import dataclass

import torch

from sanarl.algorithms import sft
from sanarl.data.loading import Loader
from sanarl.data.module import Item
from sanarl.training.ahead import Ahead, Encoded
from sanarl.training.cached import encoded
from sanarl.training.job import Job


@dataclass(frozen=True)
class Setup:
    """What a run of supervised fine-tuning is told."""

    samples_per_step: int
    settings: sft.Settings
    seed: int
    encoded_at_once: int


def train(job: Job, loader: Loader, setup: Setup, works_ahead: bool) -> int:
    """Run every step that is left; the items of the next are encoded while one trains where it ``works_ahead``.

    Returns:
        The exit code: 0, or 130 / 143 after a signal.

    Raises:
        RewardError: when a reward fails in an evaluation; the step was saved.
    """
    session, n, model = job.session, setup.samples_per_step, job.policy.model
    mine = session.world.rows(n)
    ids = torch.tensor(mine, dtype=torch.int64)

    def take(step: int) -> list[Item]:
        return loader.take((step - 1) * n, mine)

    def encode(step: int, items: list[Item]) -> Encoded:
        captions = sft.told([item["prompt"] for item in items], ids, setup.settings, (setup.seed, step))
        cond = model.encode_prompts(captions) if captions else None
        return Encoded(encoded(model, items, setup.encoded_at_once), cond)

    job.begin()
    with Ahead(take, encode, model.device, works_ahead) as ahead:
        for step in session.steps(job.export):
            with session.timed("step"):
                with session.timed("data"):
                    items, batch = ahead.items(step)  # data
                with session.timed("train"):
                    batch = batch or encode(step, items)
                    if step < session.total:
                        ahead.begin(step + 1)
                    most = session.world.gather_objects(sft.count_terms(batch.latents, setup.settings.mini_batch))
                    metrics = job.update(
                        sft.terms(
                            job.policy,
                            batch.latents,
                            captions=[item["prompt"] for item in items],
                            ids=ids,
                            settings=setup.settings,
                            key=(setup.seed, step),
                            num_terms=max(most) if job.policy.is_sharded else 0,
                            cond=batch.cond,
                        ),
                        share=len(mine) / n,
                        step=step,
                    )
                ahead.settle()
                metrics = job.conclude(step, metrics)
            session.log(step, metrics)
    return session.signals.exit_code
