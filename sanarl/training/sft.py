"""Supervised fine-tuning.

config -> data -> policy -> loss terms -> optimiser -> checkpoint
"""

from dataclasses import dataclass

import torch

from sanarl.algorithms import sft
from sanarl.data.loading import Loader
from sanarl.training.cached import encoded
from sanarl.training.job import Job


@dataclass(frozen=True)
class Setup:
    """What a run of supervised fine-tuning is told."""

    samples_per_step: int
    settings: sft.Settings
    seed: int
    encoded_at_once: int


def train(job: Job, loader: Loader, setup: Setup) -> int:
    """Run every step that is left.

    Returns:
        The exit code: 0, or 130 / 143 after a signal.

    Raises:
        RewardError: when a reward fails in an evaluation; the step was saved.
    """
    session, n = job.session, setup.samples_per_step
    job.begin()
    for step in session.steps(job.export):
        with session.timed("step"):
            mine = session.world.rows(n)
            with session.timed("data"):
                items = loader.take((step - 1) * n, mine)  # data
            with session.timed("train"):
                latents = encoded(job.policy.model, items, setup.encoded_at_once)
                most = session.world.gather_objects(sft.count_terms(latents, setup.settings.mini_batch))
                metrics = job.update(
                    sft.terms(
                        job.policy,
                        latents,
                        captions=[item["prompt"] for item in items],
                        ids=torch.tensor(mine, dtype=torch.int64),
                        settings=setup.settings,
                        key=(setup.seed, step),
                        num_terms=max(most) if job.policy.is_sharded else 0,
                    ),
                    share=len(mine) / n,
                    step=step,
                )
            metrics = job.conclude(step, metrics)
        session.log(step, metrics)
    return session.signals.exit_code
