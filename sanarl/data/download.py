"""One file from an address: whole, of the known size and hash, or not there at all."""

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sanarl.data.inspection import sha256
from sanarl.errors import UserError

TIMEOUT_S = 30.0  # without a byte
PIECE = 1 << 16
TRIES = 3  # of going on where a connection broke off

Seen = Callable[[int, int], None]


@dataclass(frozen=True)
class File:
    """A file, where it is, and what it must hold."""

    name: str
    url: str
    size: int
    sha256: str


class _Broken(Exception):
    """The connection ended before the file did."""


def download(file: File, folder: Path, seen: Seen = lambda _done, _total: None) -> None:
    """Fetch one file under a temporary name, and give it its own when size and hash are right.

    Where a connection breaks off it is gone on with, also by a later call: what came is kept under the temporary name.

    Args:
        file: What is fetched.
        folder: Where to.
        seen: Told how many bytes of all are there.

    Raises:
        UserError: If it cannot be fetched or holds something else.
        OSError: If it cannot be written.
    """
    partial = folder / f".{file.name}.partial"
    tries = TRIES
    while True:
        before = _size(partial)
        try:
            from_the_start = _append(file, partial, seen)
        except _Broken as error:
            tries -= 1
            if tries and _size(partial) > before:
                continue
            raise UserError(
                f"{file.url}: broke off after {_size(partial)} of {file.size} bytes: {error}; "
                f"what came is kept in {partial}, and the next call goes on from there"
            ) from error
        size = _size(partial)
        if size == file.size and sha256(partial) == file.sha256:
            break
        found = f"{size} bytes{' or more' if size > file.size else ''}, sha256 {sha256(partial)}"
        partial.unlink()
        if from_the_start:
            raise UserError(f"{file.url}: found {found}; accepted: {file.size} bytes, sha256 {file.sha256}")
        # Its beginning was of another call: perhaps that was wrong.
    with partial.open("rb+") as whole:
        os.fsync(whole.fileno())
    os.replace(partial, folder / file.name)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _append(file: File, partial: Path, seen: Seen) -> bool:
    """Bring what is missing of a file, at most one piece more than it may have; whether nothing was there before.

    Raises:
        UserError: If there is no answer, or another one than the file.
    """
    have = _size(partial)
    if have >= file.size > 0:
        return False
    response = _answer(file, have)
    if response is None:  # nothing follows on what is there
        partial.unlink()
        return _append(file, partial, seen)
    with response:
        start = have if response.status == http.client.PARTIAL_CONTENT else 0
        promised = response.headers.get("Content-Length")
        size = start
        with partial.open("rb+" if start else "wb") as out:
            out.seek(start)
            while size <= file.size:
                try:
                    piece = response.read(PIECE)
                except (OSError, http.client.HTTPException) as error:
                    raise _Broken(str(error) or type(error).__name__) from error
                if not piece:
                    break
                out.write(piece)
                size += len(piece)
                seen(size, file.size)
    if size <= file.size and promised is not None and size < start + int(promised):
        raise _Broken("the connection was closed")
    return start == 0


def _answer(file: File, have: int) -> Any:
    """An open response: of the whole file (200), or of what follows on the first ``have`` bytes (206); None for 416."""
    try:
        request = urllib.request.Request(file.url, headers={"Range": f"bytes={have}-"} if have else {})
        response = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        if have and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return None
        raise UserError(f"{file.url}: cannot be fetched: {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UserError(f"{file.url}: cannot be fetched: {getattr(error, 'reason', None) or error}") from error
    is_partial = response.status == http.client.PARTIAL_CONTENT
    if is_partial and not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
        response.close()
        raise UserError(f"{file.url}: cannot be fetched: it sent another part than was asked for")
    return response
