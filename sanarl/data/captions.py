"""Captions from files: one a file (.json, .txt), or a table of them (metadata.jsonl, .csv, .parquet)."""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sanarl.data.prompts import object_fault, prompt_fault, read_text
from sanarl.errors import UserError

MAX_BYTES = 1 << 20
FILE_KEYS = ("file_name", "filename", "file", "path", "image", "video")
"""Columns of a table that may name the media file; the first that is there does."""

Read = tuple[str | None, str | None]
"""A caption, or what is wrong with it."""


def read_caption(file: Path, keys: Sequence[str]) -> Read:
    """(caption, None) of a .json or .txt file, or (None, what is wrong with it).

    Args:
        file: Of a json object, the first of ``keys`` that it has; of a text, all of it without blanks at its ends.
        keys: Names that the caption may have.
    """
    if not file.is_file():
        return None, f"{file}: found something that is not a regular file"
    try:
        size = file.stat().st_size
        if size > MAX_BYTES:
            return None, f"{file}: found {size} bytes; accepted: one caption, at most {MAX_BYTES} bytes"
        text = read_text(file)
    except UserError as error:
        return None, str(error)
    except OSError as error:
        return None, f"{file}: cannot be read: {error.strerror or error}"
    if file.suffix.lower() == ".txt":
        fault = prompt_fault(text)
        return (None, f"{file}: found {fault}; accepted: a caption") if fault else (text.strip(), None)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        return None, f"{file}:{error.lineno}: not JSON: {error.msg}"
    except (ValueError, RecursionError) as error:
        return None, f"{file}: not JSON: {error}"
    return _caption(value, keys, str(file))


def _caption(value: Any, keys: Sequence[str], where: str) -> Read:
    key = next((key for key in keys if isinstance(value, dict) and key in value), keys[0])
    fault = object_fault(value, key)
    if fault and len(keys) > 1 and isinstance(value, dict) and key not in value:
        fault = f"found the keys {sorted(value)}; accepted: an object with one of the keys {', '.join(map(repr, keys))}"
    return (None, f"{where}: {fault}") if fault else (value[key].strip(), None)


def is_table(name: str) -> bool:
    """Whether a file of this name holds captions of other files."""
    return name.lower() == "metadata.jsonl" or name.lower().endswith((".csv", ".parquet"))


def speaks(file: Path, keys: Sequence[str]) -> bool:
    """Whether a table is about media files: metadata.* always, others when their columns name files and captions."""
    if file.name.lower().startswith("metadata."):
        return True
    try:
        if file.suffix.lower() == ".csv":
            with file.open(encoding="utf-8-sig", newline="") as lines:
                columns = {name.strip() for name in next(csv.reader(lines), [])}
        else:
            columns = set(_pyarrow(file).read_schema(file).names)
    except (OSError, csv.Error, ValueError):  # read_table says what is wrong
        return True
    return not columns.isdisjoint(FILE_KEYS) and not columns.isdisjoint(keys)


def read_table(file: Path, keys: Sequence[str]) -> Iterator[tuple[str, str | None, str | None]]:
    """Rows of a caption table: (media file as written, relative to the table; caption, None), or ("", None, fault).

    Args:
        file: metadata.jsonl, .csv (with a head line) or .parquet.
        keys: Names that the caption's column may have.

    Raises:
        UserError: If a parquet file cannot be read because pyarrow is missing.
    """
    readers = {".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}
    number = 0
    try:
        for number, value in readers[file.suffix.lower()](file):
            where = f"{file}:{number}"
            if isinstance(value, str):
                yield "", None, f"{where}: {value}"
                continue
            name = next((value[k] for k in FILE_KEYS if isinstance(value, dict) and value.get(k)), None)
            if not isinstance(name, str):
                found = f"the keys {sorted(map(str, value))}" if isinstance(value, dict) else type(value).__name__
                found = found if name is None else f"{type(name).__name__} as the file's name"
                yield "", None, f"{where}: found {found}; accepted: a file's name under one of {', '.join(FILE_KEYS)}"
                continue
            caption, fault = _caption(value, keys, where)
            yield ("", None, fault) if fault else (name, caption, None)
    except UnicodeDecodeError as error:
        yield "", None, f"{file}: after row {number}: not UTF-8: {error.reason}; accepted: UTF-8"
    except (OSError, csv.Error, ValueError) as error:
        yield "", None, f"{file}: after row {number}: cannot be read: {error}"


def _jsonl(file: Path) -> Iterator[tuple[int, Any]]:
    with file.open(encoding="utf-8-sig") as lines:
        number = 0
        while line := lines.readline(MAX_BYTES):
            number += 1
            if len(line) == MAX_BYTES:
                yield number, f"a line of more than {MAX_BYTES} characters; the rest of the file is not read"
                return
            if not line.strip():
                continue
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, f"not JSON: {error}"


def _csv(file: Path) -> Iterator[tuple[int, Any]]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, restkey="columns without a name", strict=True)
        for row in reader:
            yield reader.line_num, {key.strip(): value for key, value in row.items() if key is not None}


def _parquet(file: Path) -> Iterator[tuple[int, Any]]:
    number = 0
    with _pyarrow(file).ParquetFile(file) as table:
        for batch in table.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield number, row


def _pyarrow(file: Path) -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UserError(f"{file}: reading parquet needs a package that is missing: pip install pyarrow") from error
    return parquet
