"""[guards]: what is watched beside the reward in reinforcement learning."""

from typing import Annotated

from pydantic import Field

from sanarl.config.schema.base import Arguments, Count, Fraction, Positive, Table, Text, Weights


class Guards(Table):
    """Samples of a few fixed prompts, compared with what training started from; warnings when a reward is hacked."""

    enable: bool = True
    """Watch; changes no trained number."""
    freq: Count = 20
    """Steps between looks; one more before the first step and after the last."""
    num_prompts: Count = 8
    """Prompts that are looked at."""
    n_generation: Annotated[int, Field(ge=2, le=2**31 - 1)] = 4
    """Samples of a prompt."""
    prompts: Text | None = None
    """A .txt or .jsonl file with them; unset: items of the training set, evenly spread."""
    reward_function: Weights = Field(default={})
    """Rewards that are not trained on, scored in this process; unset: those of the training."""
    reward_args: Arguments = Field(default={})
    """What those rewards are built with; beside an unset reward_function: as in training."""
    min_diversity: Fraction = 0.5
    """Warn when samples of a prompt differ less than this share of what they did at the start."""
    max_change: Annotated[float, Field(gt=1, le=1000)] = 3.0
    """Warn when a statistic of the pictures is this many times what it was, or one part in this many."""
    max_drift: Positive = 0.5
    """Warn when velocities are this far from those at the start, as a share of their size."""
    stop: bool = False
    """End the run at a warning, with a checkpoint and exit code 2."""
