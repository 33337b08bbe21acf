"""Weights & Biases."""

import os
from pathlib import Path
from typing import Any

import wandb
from wandb.errors import CommError


def logged_in() -> bool:
    """Whether a key is at hand: in WANDB_API_KEY or in the netrc file that ``wandb login`` writes."""
    return bool(os.environ.get("WANDB_API_KEY") or wandb.api.api_key)


class WandbTracker:
    """One wandb run, continued under the same id when the folder's run is resumed; offline without a login."""

    def __init__(self, folder: Path, project: str, group: str | None, name: str | None, config: dict[str, Any]):
        """Start or continue the run.

        Args:
            folder: the run's folder; wandb's files go below it, and ``wandb_id`` in it holds the run's id.
            project: wandb project. group: wandb group. name: run name; the folder's name when None.
            config: the resolved configuration.
        """
        mode = os.environ.get("WANDB_MODE") or ("online" if logged_in() else "offline")
        id_file = folder / "wandb_id"
        known = id_file.read_text(encoding="utf-8").strip() if id_file.is_file() else None
        try:
            self._run = self._start(folder, project, group, name, config, mode, known)
        except CommError:
            mode = "offline"
            self._run = self._start(folder, project, group, name, config, mode, known)
        self.offline = mode == "offline"
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
            settings=wandb.Settings(silent=True),
        )

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Take the numbers of ``step``."""
        self._run.log(metrics, step=step)

    def picture(self, step: int, name: str, path: Path) -> None:
        """Take a picture file."""
        self._run.log({name: wandb.Image(str(path))}, step=step)

    def close(self) -> None:
        """The run is over."""
        self._run.finish()
