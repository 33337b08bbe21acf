"""Prompts from files: one a line, or one JSON object a line."""

import json
from pathlib import Path
from typing import Any

from sanarl.errors import UserError

MAX_FAULTS = 100


def prompt_fault(value: Any) -> str | None:
    """What is wrong with a prompt, or None: it must be a string, not blank, and encodable as UTF-8."""
    if not isinstance(value, str):
        return "None" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"
    if not value.strip():
        return f"the blank prompt {value!r}"
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"half of a surrogate pair at character {error.start} of {value[:60]!r}"
    return None


def listed(text: str) -> tuple[str, ...]:
    """The parts between commas, each with its blanks and line ends as single blanks."""
    return tuple(" ".join(part.split()) for part in text.split(","))


def fault_page(title: str, faults: list[str]) -> UserError:
    """One error that lists all faults (the first hundred, then a count)."""
    lines = [f"  {fault}" for fault in faults[:MAX_FAULTS]]
    if len(faults) > MAX_FAULTS:
        lines.append(f"  and {len(faults) - MAX_FAULTS} more")
    return UserError("\n".join([title, *lines]))


def read_text(path: Path) -> str:
    r"""A file's text: UTF-8 with or without a byte order mark, whatever the locale; \r\n and \r become \n.

    Raises:
        UserError: If it cannot be read or is not UTF-8 (with the line's number).
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(
            f"{path}:{line}: found byte 0x{data[error.start]:02x}, which is not UTF-8; accepted: UTF-8"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """Items ``{"prompt", "metadata": {}}`` of a text file: one prompt a line, blank lines dropped.

    Raises:
        UserError: If the file cannot be read or holds no prompt.
    """
    lines = [line.strip() for line in read_text(path).split("\n")]
    faults = [f"{path}:{n}: found {fault}" for n, line in enumerate(lines, 1) if line and (fault := prompt_fault(line))]
    if faults:
        raise fault_page(f"{path}: {len(faults)} unusable lines", faults)
    items: list[dict[str, Any]] = [{"prompt": line, "metadata": {}} for line in lines if line]
    if not items:
        raise UserError(f"{path}: found no prompt; accepted: one prompt a line")
    return items


def read_metadata(path: Path) -> list[dict[str, Any]]:
    """Items ``{"prompt", "metadata"}`` of a JSON-lines file; metadata is the line's whole object, as for GenEval.

    Raises:
        UserError: Listing every bad line as ``file:line``.
    """
    items: list[dict[str, Any]] = []
    faults: list[str] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            faults.append(f"{path}:{number}: not JSON: {error}")
            continue
        fault = object_fault(value, "prompt")
        if fault:
            faults.append(f"{path}:{number}: {fault}")
        else:
            items.append({"prompt": value["prompt"].strip(), "metadata": value})
    if faults:
        raise fault_page(f"{path}: {len(faults)} unusable lines", faults)
    if not items:
        raise UserError(f"{path}: found no prompt; accepted: one JSON object with the key 'prompt' a line")
    return items


def object_fault(value: Any, key: str) -> str | None:
    """What is wrong with a JSON value that should be an object with a prompt under ``key``, or None."""
    if not isinstance(value, dict):
        return f"found {type(value).__name__}; accepted: an object with the key {key!r}"
    if key not in value:
        return f"found the keys {sorted(value)}; accepted: an object with the key {key!r}"
    fault = prompt_fault(value[key])
    return f"key {key!r}: found {fault}; accepted: a string that is not blank" if fault else None
