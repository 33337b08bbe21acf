"""The table of model families: the pipeline class that a checkpoint names -> the class that wraps it."""

from importlib import import_module
from typing import Any

FAMILIES = {"SanaPipeline": "sanarl.models.sana:Sana"}


def wrapper(pipeline_class: str) -> Any:
    """The class for a pipeline, imported on use.

    Raises:
        KeyError: when the family is not there.
    """
    module, _, name = FAMILIES[pipeline_class].partition(":")
    return getattr(import_module(module), name)
