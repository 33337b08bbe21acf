"""The table of model families: the pipeline class that a checkpoint names -> what wraps it, and what it makes."""

from importlib import import_module
from typing import Any, Literal, NamedTuple

Modality = Literal["image", "video"]


class Family(NamedTuple):
    """Where a family's class is, imported on use, and what the family makes."""

    path: str
    modality: Modality

    def wrapper(self) -> Any:
        """The class that wraps a pipeline of this family."""
        module, _, name = self.path.partition(":")
        return getattr(import_module(module), name)


FAMILIES = {
    "SanaPipeline": Family("sanarl.models.sana:Sana", "image"),
    "SanaVideoPipeline": Family("sanarl.models.sana:Sana", "video"),
}
