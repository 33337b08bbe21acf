"""Weights & Biases."""

import os
from pathlib import Path
from typing import Any

import wandb

from sanarl.runtime.track import Sample


class WandbTracker:
    """One wandb run, continued under the same id when the folder's run is resumed; offline without a login."""

    def __init__(self, folder: Path, project: str, group: str | None, name: str | None, config: dict[str, Any]):
        """Start or continue the run.

        Args:
            folder: the run's folder; wandb's files go below it, and ``wandb_id`` in it holds the run's id.
            project: wandb project. group: wandb group. name: run name; the folder's name when None.
            config: the resolved configuration.
        """
        asked = os.environ.get("WANDB_MODE")
        mode = asked or ("online" if wandb.login(prompt=False, verify=False) else "offline")
        id_file = folder / "wandb_id"
        known = id_file.read_text(encoding="utf-8").strip() if id_file.is_file() else None
        try:
            self._run = self._start(folder, project, group, name, config, mode, known)
        except wandb.Error:  # no network, or a login that is not accepted
            mode = "offline"
            wandb.teardown()
            self._run = self._start(folder, project, group, name, config, mode, known)
        self.offline = mode == "offline"
        # Steps of our own: wandb's counter only rises, and a run that goes on from a checkpoint makes some steps again.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        id_file.write_text(self._run.id + "\n", encoding="utf-8")

    def _start(
        self,
        folder: Path,
        project: str,
        group: str | None,
        name: str | None,
        config: dict,
        mode: str,
        known: str | None,
    ) -> Any:
        return wandb.init(
            dir=folder,
            project=project,
            group=group,
            name=name or folder.name,
            config=config,
            mode=mode,
            id=known,
            resume="allow",
            settings=wandb.Settings(silent=True, init_timeout=30),
        )

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Take the numbers of ``step``."""
        self._run.log({"step": step, **metrics})

    def picture(self, step: int, name: str, path: Path) -> None:
        """Take a picture file."""
        self._run.log({"step": step, name: wandb.Image(str(path))})

    def clips(self, step: int, name: str, paths: list[Path]) -> None:
        """Take mp4 files; every one keeps its own frames a second."""
        clips = [wandb.Video(str(path), caption=path.stem, format="mp4") for path in paths]
        self._run.log({"step": step, name: clips})

    def samples(self, step: int, samples: list[Sample]) -> None:
        """Take the samples of an evaluation as a table: step, prompt, sample, reward."""
        rows = [[step, one.prompt, _medium(one.file), one.reward] for one in samples]
        table = wandb.Table(columns=["step", "prompt", "sample", "reward"], data=rows)
        self._run.log({"step": step, "sample_rewards": table})

    def close(self) -> None:
        """The run is over."""
        self._run.finish()


def _medium(file: Path) -> Any:
    return wandb.Video(str(file), format="mp4") if file.suffix == ".mp4" else wandb.Image(str(file))
