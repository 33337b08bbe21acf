"""A process that leaves in the middle of a run must not look like one that finished it."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def noticed() -> Iterator[None]:
    """Inside the block ``os._exit(0)``, called by code of ours or a person's, says where and leaves with 1.

    It ends a process without any of Python's clean-up, so nobody else could tell. Forked children are left alone.
    """
    leave, process = os._exit, os.getpid()

    def watched(status: int) -> None:
        if os.getpid() == process and status == 0:
            place = traceback.extract_stack(limit=2)[0]
            line = f"{place.filename}:{place.lineno}: os._exit(0) ended the process before the run had finished"
            print(line, file=sys.stderr, flush=True)
            status = 1
        leave(status)

    os._exit = watched  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = leave
