"""Rows of text that stay on the disk: a data set of any length costs eight bytes of memory a row."""

import json
import os
import tempfile
import weakref
from array import array
from collections.abc import Sequence
from typing import Any


class Rows(Sequence[Any]):
    """JSON values in an unnamed temporary file, read by number; reading from several threads is fine.

    Raises:
        IndexError: on access outside the rows.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the rows
        weakref.finalize(self, self._file.close)
        self._starts = array("Q", [0])
        self._flushed = True

    def append(self, value: Any) -> None:
        """Add a row."""
        self._starts.append(self._starts[-1] + self._file.write(json.dumps(value).encode()))
        self._flushed = False

    def close_for_writing(self) -> None:
        """Hand everything to the system, before threads read."""
        self._file.flush()
        self._flushed = True

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> Any:  # type: ignore[override]  # slices are not offered
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"row {index} of {n}")
        if not self._flushed:
            self.close_for_writing()
        start, end = self._starts[index % n], self._starts[index % n + 1]
        return json.loads(os.pread(self._file.fileno(), end - start, start))
