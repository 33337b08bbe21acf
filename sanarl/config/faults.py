"""What can be wrong with a configuration, and the page that says so."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sanarl.errors import UserError

KeyPath = tuple[str | int, ...]
"""Keys from the root down to a value; whole numbers count into lists."""

_BARE = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


@dataclass(frozen=True)
class Note:
    """One line that the user should read although the configuration is valid."""

    level: Literal["info", "warning"]
    text: str


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong. ``place`` is "file:line", "file" or the --set argument."""

    key: str
    text: str
    place: str = ""
    line: int | None = None
    argument: str | None = None

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, self.key, self.text) if part)


@dataclass(frozen=True)
class Finding:
    """A fault before it is known where the key stands. ``involves``: other keys that it is about."""

    path: KeyPath
    text: str
    involves: tuple[KeyPath, ...] = field(default=())


class ConfigError(UserError):
    """A configuration that cannot be used; lists everything that is wrong."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        lines = [str(fault) for fault in self.faults]
        if len(lines) > 1:
            lines.append(f"{len(lines)} faults")
        super().__init__("\n".join(lines))


def dotted(path: KeyPath) -> str:
    """The path as TOML would write it: train.optm_lr, policy.lora.r_pattern."attn1.to_q"."""
    return ".".join(_part(part) for part in path)


def _part(part: str | int) -> str:
    if isinstance(part, int) or (part and set(part) <= _BARE):
        return str(part)
    return clip(json.dumps(part, ensure_ascii=False), 80)


def split(key: str) -> KeyPath:
    """A key path of the schema as a tuple."""
    return tuple(key.split("."))


def clip(text: str, length: int = 60) -> str:
    """The beginning of a long text."""
    return text if len(text) <= length else text[: length - 3] + "..."


def shown(value: Any) -> str:
    """A value as TOML would write it, shortened, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return clip(json.dumps(value, ensure_ascii=False))
    if isinstance(value, int):
        return str(value) if abs(value) < 10**30 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, dict):
        return "a table" if value else "an empty table"
    if isinstance(value, (list, tuple)):
        return clip(f"[{', '.join(shown(item) for item in value[:20])}{', ...' if len(value) > 20 else ''}]")
    return clip(str(value))


def fault(key: str, text: str, *involves: str) -> Finding:
    """A finding at ``key`` that is also about the keys ``involves``."""
    return Finding(split(key), text, tuple(split(other) for other in involves))
