"""Where things are kept between runs: what was checked, fetched prompt sets."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sanarl.errors import UserError


def home() -> Path:
    """$SANARL_HOME, or sanarl in $XDG_CACHE_HOME, or in ~/.cache."""
    own = os.environ.get("SANARL_HOME")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "sanarl"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``: of several processes on a machine one enters at a time.

    Raises:
        OSError: If the file cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # let go when the file is closed, or the process ends
        yield


@contextmanager
def busy_lock(path: Path, busy: str) -> Iterator[None]:
    """Hold the lock file ``path`` and remove it in the end.

    Raises:
        UserError: ``busy``, when another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(busy) from error
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
