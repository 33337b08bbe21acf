"""The configuration that a run wrote into its folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sanarl.config.faults import ConfigError, Fault
from sanarl.config.load import Loaded, load_source
from sanarl.config.source import Source


def load_saved(folder: Path, overrides: Sequence[str] = ()) -> Loaded:
    """The resolved configuration in the ``config.json`` of a run's folder, with ``key.path=value`` arguments on top.

    Raises:
        ConfigError: when the file is not there or not readable, or with every fault of the arguments.
    """
    file = folder / "config.json"
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))["config"]
        if not isinstance(tree, dict):
            raise ValueError("its config is no table")
    except OSError as error:
        raise ConfigError([Fault("", f"cannot be read: {error.strerror or error}", str(file))]) from error
    except (ValueError, KeyError, TypeError) as error:
        why = "no 'config' in it" if isinstance(error, KeyError) else error
        text = f"holds no configuration of a run of sanarl ({why}), so {folder} is no run's folder"
        raise ConfigError([Fault("", text, str(file))]) from error
    return load_source(Source(file, str(file), "", _set(tree), had_mark=False), overrides)


def _set(node: Any) -> Any:
    """Without unset keys: TOML has no null."""
    if isinstance(node, dict):
        return {name: _set(value) for name, value in node.items() if value is not None}
    return [_set(value) for value in node] if isinstance(node, list) else node
