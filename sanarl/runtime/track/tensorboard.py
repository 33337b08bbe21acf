"""TensorBoard."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from sanarl.runtime.track import Sample


class TensorBoardTracker:
    """Event files in ``tensorboard/`` of the run's folder; what a resumed run makes again replaces what was there."""

    def __init__(self, folder: Path, config: dict[str, Any], after_step: int):
        """Open a new event file.

        Args:
            folder: the run's folder. config: the resolved configuration, shown as text.
            after_step: the step that the run goes on from; events after it are purged.
        """
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=after_step + 1 if after_step else None)
        text = json.dumps(config, ensure_ascii=False, indent=1).replace("\n", "\n    ")
        self._writer.add_text("config", f"    {text}", after_step)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Take the numbers of ``step``."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def picture(self, step: int, name: str, path: Path) -> None:
        """Take a picture file."""
        with Image.open(path) as picture:
            self._writer.add_image(name, np.asarray(picture.convert("RGB")), step, dataformats="HWC")

    def clips(self, step: int, name: str, paths: list[Path]) -> None:
        """Name the files: TensorBoard plays GIF alone, and the sheet beside it shows frames of every clip."""
        self._writer.add_text(name, "\n\n".join(f"`{path}`" for path in paths), step)

    def samples(self, step: int, samples: list[Sample]) -> None:
        """Take the samples of an evaluation as a table of prompts and rewards."""
        rows = [f"| {_cell(s.prompt)} | {'' if s.reward is None else f'{s.reward:.4g}'} |" for s in samples]
        self._writer.add_text("sample_rewards", "\n".join(["| prompt | reward |", "|---|---|", *rows]), step)

    def close(self) -> None:
        """The run is over."""
        self._writer.close()


def _cell(text: str) -> str:
    """A prompt that ends neither the cell nor the row."""
    return " ".join(text.replace("|", "\\|").split())
