"""Signals: Ctrl-C and SIGTERM end a run after its present step with a checkpoint; SIGUSR1 only saves one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

EXIT = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Signals:
    """Hears signals while it is entered, and remembers what they asked for.

    Outside ``deferred`` there is no step to finish, so Ctrl-C and SIGTERM end the process with 130 and 143; so does a
    second one inside. Only the main thread can hear; entered elsewhere it does nothing.
    """

    def __init__(self) -> None:
        """Nothing has been asked for."""
        self.stop: signal.Signals | None = None
        self.save = False
        self._deferring = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (*EXIT, signal.SIGUSR1):
                self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before = {}

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM wait for the present step; hears by itself when nobody has entered it."""
        with self if not self._before else _nothing():
            self._deferring = True
            try:
                yield
            finally:
                self._deferring = False

    def _hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # the interpreter passes both
        if number == signal.SIGUSR1:
            self.save = True
        elif self._deferring and self.stop is None:
            self.stop = signal.Signals(number)
        else:
            raise SystemExit(EXIT[signal.Signals(number)])

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM, 0 otherwise."""
        return EXIT[self.stop] if self.stop is not None else 0


@contextmanager
def _nothing() -> Iterator[None]:
    yield
