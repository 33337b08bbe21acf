"""--set key.path=value."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sanarl.config.faults import KeyPath, dotted, shown
from sanarl.config.source import DEEPEST, too_deep


@dataclass(frozen=True)
class Override:
    """One argument: what it says, where it goes, or why it cannot be read."""

    argument: str
    path: KeyPath = ()
    value: Any = None
    problem: str = ""


def read(argument: str) -> Override:
    """Split ``key.path=value``; the value is TOML, or a text without quotes."""
    key, equals, value = argument.partition("=")
    if not equals or not key.strip():
        return Override(argument, problem="expected KEY.PATH=VALUE")
    path = _path(key.strip())
    if path is None:
        return Override(argument, problem=f"{shown(key.strip())} is not a key path")
    value = value.strip()
    if not value:
        return Override(argument, path, problem='no value after =; an empty text is ""')
    try:
        document = tomllib.loads(f"value = {value}")
        if set(document) == {"value"} and not too_deep(document):
            return Override(argument, path, document["value"])
    except (ValueError, RecursionError):
        pass
    if value[0] in "[{\"'" or len(value) > 10_000:
        return Override(argument, path, problem=f"not valid TOML after = (or nested deeper than {DEEPEST})")
    return Override(argument, path, value)


def _path(key: str) -> KeyPath | None:
    try:
        node: Any = tomllib.loads(f"{key} = 0")
    except (ValueError, RecursionError):
        return None
    path: list[str] = []
    while isinstance(node, dict):
        if len(node) != 1 or len(path) >= DEEPEST:
            return None
        (part, node), *_ = node.items()
        path.append(part)
    return tuple(path) if node == 0 else None


def apply(tree: dict[str, Any], override: Override, rename: Callable[[KeyPath], KeyPath]) -> tuple[KeyPath, str]:
    """Put the value into the tree; returns where it went and, if it could not go there, why."""
    node: Any = tree
    path: KeyPath = ()
    parts = rename(override.path)
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        if isinstance(node, list):
            if not str(part).isdecimal() or int(part) >= len(node):
                entries = f"0 to {len(node) - 1}" if node else "none"
                return path, f"{shown(part)} is no entry of this list (it has {entries})"
            part = int(part)
        elif not isinstance(node, dict):
            return path, f"is {shown(node)}, not a table: {dotted((part,))} cannot be set in it"
        path = (*path, part)
        if not last and isinstance(node, dict) and part not in node and str(parts[depth + 1]).isdecimal():
            return path, f"{parts[depth + 1]} is no entry of this list (it has none)"
        if last:
            node[part] = override.value
        elif isinstance(node, dict):
            node = node.setdefault(part, {})
        else:
            node = node[int(part)]
    return path, ""
