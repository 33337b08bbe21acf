"""A request's body on its way into a file, checked as it comes: what is too large or malformed is never read."""

import asyncio
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sanarl.errors import UserError
from sanarl.rewards import wire
from sanarl.rewards.server.settings import Service
from sanarl.rewards.wire import ArrayHeader, Head, Malformed

PREFIX = "sanarl-reward-"
LINE_LIMIT = 16 << 20
SLOWEST = 100_000
"""Bytes a second below which a request is given up."""


class TooLarge(Malformed):
    """More than this service takes."""


class Stalled(Malformed):
    """The rest of a request did not come."""


@dataclass(frozen=True)
class Received:
    """A request; its .npy file lies in ``path``, which the receiver must delete. None: the media cannot be scored."""

    head: Head
    array: ArrayHeader
    path: Path | None
    misfit: str | None
    """Why not."""


class Spool:
    """A private folder for media on their way to scorers; in memory where the machine offers that.

    It is locked for as long as this process lives; folders of services that were killed are deleted by the next.

    Args:
        folder: Where; empty: /dev/shm when it has ``room`` bytes free, else the system's folder.
        room: Bytes that it may have to hold.

    Raises:
        UserError: When there is no such folder.
    """

    def __init__(self, folder: str, room: int):
        memory = Path("/dev/shm")
        if not folder and memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= room:
            folder = str(memory)
        parent = Path(folder or tempfile.gettempdir())
        try:
            gate = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise UserError(f"service.spool: found {folder!r}: {error.strerror}; accepted: a folder") from error
        try:
            fcntl.flock(gate, fcntl.LOCK_EX)  # nobody sees a folder that is not locked yet
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            self._lock = _locked(self.path)
            for other in parent.glob(f"{PREFIX}*"):
                if other != self.path and (lock := _locked(other)) is not None:
                    shutil.rmtree(other, ignore_errors=True)
                    os.close(lock)
        finally:
            os.close(gate)

    def file(self, name: str) -> Path:
        """A path inside."""
        return self.path / name

    def close(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)


def _locked(folder: Path) -> int | None:
    """A lock on a folder, which the system gives back when the process ends; None when another holds it.

    A folder that is not ours to open is another user's and held by him.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


async def receive(chunks: AsyncIterator[bytes], declared: int | None, path: Path, limits: Service) -> Received:
    """Read a body.

    Args:
        chunks: The body.
        declared: Its length as announced; None when it was not.
        path: File for the .npy part.
        limits: Sizes and times.

    Raises:
        Malformed: When it is no request; TooLarge and Stalled are two kinds of it. ``path`` is gone then.
    """
    clock = asyncio.get_running_loop()
    most = limits.max_request_mb * 1_000_000
    end = clock.time() + limits.body_s + (most if declared is None else declared) / SLOWEST
    reading = _Reading(declared, path, limits)
    try:
        async with asyncio.timeout(limits.body_s) as patience:
            async for chunk in chunks:
                reading.feed(chunk)
                patience.reschedule(min(clock.time() + limits.body_s, end))
        return reading.result()
    except BaseException as error:
        reading.close()
        with suppress(FileNotFoundError):
            path.unlink()
        if isinstance(error, TimeoutError):
            raise Stalled(f"the rest of the request did not come within {limits.body_s:g} s") from error
        raise


class _Reading:
    """A body as far as it has come."""

    def __init__(self, declared: int | None, path: Path, limits: Service):
        self.declared, self.path, self.limits = declared, path, limits
        self.start = bytearray()
        self.head: Head | None = None
        self.array: ArrayHeader | None = None
        self.misfit: str | None = None
        self.before = 0  # bytes of the first line
        self.written = 0
        self.file: int | None = None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes."""
        if self.array is not None:
            self.write(chunk)
            return
        self.start += chunk
        if self.head is None:
            self.read_line(len(chunk))
        if self.head is not None:
            self.array = wire.read_array_header(bytes(self.start[: wire.HEADER_LIMIT + 12]))
            if self.array is not None:
                self.begin(self.head, self.array)

    def read_line(self, new: int) -> None:
        end = self.start.find(b"\n", max(0, len(self.start) - new))
        if end < 0 and len(self.start) <= LINE_LIMIT:
            return
        if end < 0 or end > LINE_LIMIT:
            raise TooLarge(f"the first line is longer than {LINE_LIMIT} bytes")
        self.head = wire.read_head(bytes(self.start[:end]))
        if len(self.head.prompts) > self.limits.max_prompts:
            raise TooLarge(f"found {len(self.head.prompts)} prompts; accepted: at most {self.limits.max_prompts}")
        self.before = end + 1
        del self.start[: self.before]

    def begin(self, head: Head, array: ArrayHeader) -> None:
        """Check the announced sizes against each other before the numbers are read."""
        total = self.before + array.start + array.nbytes
        if total > self.limits.max_request_mb * 1_000_000:
            raise TooLarge(f"found media of {array.nbytes} bytes; accepted: {self.limits.max_request_mb} MB a request")
        if self.declared is not None and self.declared != total:
            word = "truncated" if self.declared < total else "followed by other bytes"
            raise Malformed(f"the .npy file is {word}: {self.declared} bytes were announced, its header needs {total}")
        self.misfit = wire.misfit(head, array)
        if self.misfit is None:
            self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        start, self.start = bytes(self.start), bytearray()
        self.write(start)

    def write(self, data: bytes) -> None:
        assert self.array is not None
        self.written += len(data)
        if self.written > self.array.start + self.array.nbytes:
            raise Malformed("the .npy file is followed by other bytes")
        while data and self.file is not None:
            data = data[os.write(self.file, data) :]

    def result(self) -> Received:
        """What has come, complete."""
        self.close()
        if self.head is None:
            raise Malformed("there is no line of JSON")
        if self.array is None:
            raise Malformed("the .npy file is truncated: its header is not complete")
        if self.written < self.array.start + self.array.nbytes:
            total = self.array.start + self.array.nbytes
            raise Malformed(f"the .npy file is truncated: found {self.written} of {total} bytes")
        return Received(self.head, self.array, None if self.misfit else self.path, self.misfit)

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            os.close(self.file)
            self.file = None
