"""[rollout]: how many samples a prompt gets."""

from sanarl.config.schema.base import Count, Table


class Rollout(Table):
    """Samples that are drawn for training."""

    n_generation: Count = 16
    """Samples of a prompt: one group."""
    n_generation_mini_batch: Count | None = None
    """Samples drawn at once; changes memory, never a result. Unset: a whole group."""
