"""[logging]: what is shown and where."""

from typing import Literal

from sanarl.config.schema.base import Count, OptionalName, Table, Text


class Logging(Table):
    """Trackers. metrics.jsonl in the run's folder is written always."""

    logger: tuple[Literal["console", "wandb", "tensorboard"], ...] = ("console",)
    """Where metrics go besides metrics.jsonl; "tensorboard" writes into the run's folder."""
    log_interval: Count = 1
    """Steps between lines."""
    multi_modal_log_interval: Count | None = None
    """Reinforcement learning: steps between sheets of a rollout; unset: none. Every evaluation has its sheet."""
    report_mfu: bool = False
    """Log perf/tflops and perf/mfu: achieved TFLOP/s and their share of the device's peak."""
    project_name: Text = "cosmos_rl"
    """Project at the tracker."""
    group_name: OptionalName = None
    """Group at the tracker."""
    experiment_name: OptionalName = None
    """Name of the run; unset: its folder's name."""
