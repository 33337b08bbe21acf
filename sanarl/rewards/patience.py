"""How long a service is waited for: silence and refusals, told to a person once, and the pauses between tries."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx

from sanarl.rewards.mix import RewardError

STAYED_AWAY = 1
"""Exit code of a run whose service stayed away."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
BUSY_EVERY_S = 60.0


class Closed(Exception):
    """The run is ending."""


class Service(Protocol):
    """What is asked."""

    patience: "Patience"

    def post(self, url: str, **request: Any) -> httpx.Response:
        """One POST; raises httpx.HTTPError when there is no answer, or one that does not end."""

    def refusal(self, url: str, answer: httpx.Response) -> str:
        """A refusal in words."""


class Patience:
    """A service as a whole, for all threads that ask it.

    Args:
        name: In messages.
        patience_s: Seconds that a service without room, and a silent one, is waited for.
    """

    def __init__(self, name: str, patience_s: float):
        self.name, self.patience_s = name, patience_s
        self.say: Callable[[str], None] = print
        self.silence_s = patience_s
        """Seconds of silence that are waited through."""
        self.ending = threading.Event()
        self._jitter = random.Random()  # times only
        self._lock = threading.Lock()
        self._silent_since: float | None = None
        self._busy_said: float | None = None

    def silent(self, cause: str) -> None:
        """Take note that the service does not answer; say so once."""
        with self._lock:
            first = self._silent_since is None
            self._silent_since = self._silent_since or time.monotonic()
        if first:
            self.say(f"{self.name} does not answer ({cause}); waiting for it, at most {self.silence_s:g} s")

    def busy(self, cause: str) -> None:
        """Take note that it answers but takes nothing; say so once a minute."""
        with self._lock:
            now = time.monotonic()
            due = self._busy_said is None or now - self._busy_said > BUSY_EVERY_S
            self._busy_said = now if due else self._busy_said
        if due:
            self.say(f"{cause}; waiting for it, at most {self.patience_s:g} s")

    def heard(self) -> None:
        """Take note that it answers."""
        with self._lock:
            since, self._silent_since = self._silent_since, None
        if since is not None:
            self.say(f"{self.name} answers again after {time.monotonic() - since:.1f} s; going on")

    def left(self, since: float, answered: bool) -> bool:
        """Whether something that began at ``since`` may go on; a service that answers gets more time to be ready."""
        return time.monotonic() - since < (self.patience_s if answered else self.silence_s)

    def sleep(self, seconds: float) -> None:
        """Wait, unless the run ends."""
        if self.ending.wait(seconds):
            raise Closed

    def jittered(self, seconds: float) -> float:
        """About that long, so that clients do not come all at once."""
        return seconds * self._jitter.uniform(0.5, 1.5)


class Waiting:
    """The tries of one call, and how long they may go on."""

    def __init__(self, service: Service, doing: str):
        self._service, self._doing = service, doing
        self._since: float | None = None
        self._answered = False
        self._cause, self._number, self._retry_after = "", 0, 0.0

    def ask(self, url: str, **request: Any) -> httpx.Response | None:
        """An answer; None when there was none."""
        try:
            answer = self._service.post(url, **request)
        except httpx.HTTPError as error:
            self._note(f"{shown(url)}: {words(error)}")
            self._answered = False
            return None
        self._answered = True
        self._service.patience.heard()
        if answer.status_code < 500 and answer.status_code != 429:
            self._since, self._number = None, 0
        return answer

    def _note(self, cause: str) -> None:
        self._cause = cause
        self._since = self._since or time.monotonic()

    def refused(self, answer: httpx.Response) -> None:
        """Take note of a refusal that may pass.

        Raises:
            RewardError: For one that will not.
        """
        if answer.status_code not in (408, 425, 429) and answer.status_code < 500:
            raise RewardError(self._service.refusal(str(answer.request.url), answer))
        self._note(self._service.refusal(str(answer.request.url), answer))
        with suppress(ValueError):
            self._retry_after = min(max(float(answer.headers.get("Retry-After", "0")), 0.0), 60.0)

    def pause(self) -> None:
        """Wait before the next try.

        Raises:
            RewardError: When it was tried for long enough.
        """
        since, patience = self._since or time.monotonic(), self._service.patience
        (patience.busy if self._answered else patience.silent)(self._cause)
        if not patience.left(since, self._answered):
            waited = time.monotonic() - since
            text = f"{patience.name} did not {self._doing} for {waited:.0f} s; last: {self._cause}"
            raise RewardError(text, STAYED_AWAY)
        pause = patience.jittered(min(FIRST_PAUSE_S * 2**self._number, LONGEST_PAUSE_S))
        patience.sleep(max(pause, self._retry_after))
        self._number, self._retry_after = self._number + 1, 0.0


def words(error: httpx.HTTPError) -> str:
    """What went wrong, also where httpx says nothing."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def shown(url: str) -> str:
    """An address for people: without a password that it may hold."""
    at = urlsplit(url)
    return url if "@" not in at.netloc else url.replace(at.netloc, at.netloc.rpartition("@")[2], 1)
