"""The trackers that a configuration names."""

from importlib.util import find_spec

from sanarl.config import Config
from sanarl.errors import UserError
from sanarl.runtime.console import Console
from sanarl.runtime.folder import RunFolder
from sanarl.runtime.track import Tracker


def check(config: Config) -> None:
    """Find out before anything is built whether the trackers are installed.

    Raises:
        UserError: when one is not.
    """
    if "tensorboard" in config.logging.logger and find_spec("tensorboard") is None:
        raise UserError(
            "logging.logger: found \"tensorboard\", which is not installed; pip install 'sanarl[tensorboard]', or "
            "leave it out: metrics.jsonl is written always, and sanarl report shows it"
        )


def trackers(config: Config, folder: RunFolder, console: Console, after_step: int) -> list[Tracker]:
    """Start every tracker of ``logging.logger``, for a run that goes on after ``after_step`` (0: a new one)."""
    made: list[Tracker] = []
    values, log = config.model_dump(mode="json"), config.logging
    if "wandb" in log.logger:
        from sanarl.runtime.track.weights_and_biases import WandbTracker

        tracker = WandbTracker(folder.path, log.project_name, log.group_name, log.experiment_name, values)
        if tracker.offline:
            place = f"{folder.path}/wandb/offline-run-*"
            console.line(f"wandb is offline (no login); upload later with: wandb sync {place}")
        made.append(tracker)
    if "tensorboard" in log.logger:
        from sanarl.runtime.track.tensorboard import TensorBoardTracker

        made.append(TensorBoardTracker(folder.path, values, after_step))
    return made
