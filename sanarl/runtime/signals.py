"""Signals: Ctrl-C and SIGTERM end a run after its present step with a checkpoint; SIGUSR1 only saves one."""

import signal
from types import FrameType, TracebackType
from typing import Self

EXIT = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Signals:
    """Remembers what was asked for, while it is entered; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        """Nothing has been asked for."""
        self.stop: signal.Signals | None = None
        self.save = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        for number in (*EXIT, signal.SIGUSR1):
            self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # the interpreter passes both
        if number == signal.SIGUSR1:
            self.save = True
        elif self.stop is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            self.stop = signal.Signals(number)

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM, 0 otherwise."""
        return EXIT[self.stop] if self.stop is not None else 0
