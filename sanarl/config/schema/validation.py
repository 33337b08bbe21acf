"""[validation]: the held-out evaluation."""

from pydantic import Field

from sanarl.config.schema.base import Arguments, Count, Dataset, Table, Weights
from sanarl.config.schema.rewards import RemoteReward


class Validation(Table):
    """Samples from held-out prompts, the same noise every time, and their rewards."""

    enable: bool = False
    """Evaluate."""
    val_before_train: bool = False
    """Also before the first step."""
    freq: Count = 20
    """Steps between evaluations."""
    batch_size: Count | None = None
    """Samples drawn at once; unset: as in training."""
    dataset: Dataset = Dataset()
    n_generation: Count = 1
    """Samples of a prompt."""
    num_prompts: Count | None = None
    """Items that are used, the first; unset: all."""
    reward_function: Weights = Field(default={})
    """Rewards scored in this process; unset: those of the training."""
    reward_args: Arguments = Field(default={})
    """What those rewards are built with; beside an unset reward_function: as in training."""
    use_remote_reward: bool | None = None
    """Let a service score; unset: as in training."""
    remote_reward: RemoteReward | None = None
    """How its scores become one reward; unset: as in training."""
