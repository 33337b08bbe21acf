"""One request to a reward service and its answer, through refusals, silence and restarts; bounded everywhere."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from sanarl.rewards import wire
from sanarl.rewards.mix import RewardError

ATTEMPTS = 3
"""Times that a request is sent because the service lost it or was late."""
LOST_AFTER = 3
"""Answers in a row that nobody knows a request, before it is sent again: replicas may be asked in turn."""
HOLD_S = 5.0
"""Seconds that we ask the service to hold a pull; services of Cosmos-RL answer at once."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
LONGEST_POLL_S = 1.0
BUSY_EVERY_S = 60.0
SLOWEST = 500_000
"""Bytes a second that an upload must reach."""


@dataclass(frozen=True)
class Addresses:
    """Where a service is. With as many fetch as enqueue addresses the n-th of both are one replica."""

    enqueue: tuple[str, ...]
    fetch: tuple[str, ...]
    token: str

    def fetch_first(self, place: int) -> list[str]:
        """The fetch addresses, that of a replica first."""
        at = place if len(self.fetch) == len(self.enqueue) else 0
        return [*self.fetch[at:], *self.fetch[:at]]


@dataclass(frozen=True)
class Order:
    """What is to be scored, and the columns that are wanted: (reward, score key)."""

    prompts: list[str]
    media: np.ndarray
    metadata: list[dict[str, Any]]
    columns: list[tuple[str, str]]


@dataclass(frozen=True)
class _Ticket:
    """An accepted request."""

    uuid: str
    replica: str | None
    place: int


class _Lost(Exception):
    """The service does not know the request any more, or is late; the text says which."""


class _Closed(Exception):
    """The run is ending."""


class Exchange:
    """Speaks to a service; used by several threads.

    Args:
        where: The service.
        weights: Rewards that requests name.
        deadline_s: Seconds from an accepted request to its scores.
        patience_s: Seconds to wait for a service that does not answer or has no room.
    """

    def __init__(self, where: Addresses, weights: dict[str, float], deadline_s: float, patience_s: float):
        self.name = f"reward service {', '.join(where.enqueue)}"
        self.say: Callable[[str], None] = print
        self._where, self._weights = where, weights
        self._deadline_s, self._patience_s = deadline_s, patience_s
        self._headers = {"Authorization": f"Bearer {where.token}"} if where.token else {}
        self._client = httpx.Client(timeout=30.0, limits=httpx.Limits(max_connections=None), headers=self._headers)
        self._jitter = random.Random()  # times only
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._silent_since: float | None = None
        self._busy_said: float | None = None
        self._turn = 0

    # ---- a request

    def score(self, order: Order) -> list[list[float]]:
        """Every wanted column of an order.

        Raises:
            RewardError: Naming the service, the reward and the cause.
        """
        count = len(order.prompts)
        try:
            body = wire.pack(order.prompts, self._weights, order.media, order.metadata)
        except ValueError as error:
            raise RewardError(
                f"{self.name}, a request that starts with prompt {order.prompts[0]!r}: {error}"
            ) from error
        cause = ""
        for _ in range(ATTEMPTS):
            ticket = self._enqueue(body)
            try:
                answers = {name: self._pull(ticket, name) for name in dict(order.columns)}
            except _Lost as error:
                cause = str(error)
                self.say(f"{self.name}: {cause}; sending {count} pictures again")
                continue
            return [self._column(answers[name], name, key, order) for name, key in order.columns]
        raise RewardError(
            f"{self.name}: {cause}, {ATTEMPTS} times ({count} pictures, first prompt {order.prompts[0]!r})"
        )

    def _column(self, answer: Any, name: str, key: str, order: Order) -> list[float]:
        try:
            return wire.read_scores(answer, key, len(order.prompts))
        except wire.Malformed as error:
            first = f"{len(order.prompts)} pictures, first prompt {order.prompts[0]!r}"
            raise RewardError(f"reward {name!r} of the {self.name}: {error} ({first})") from error

    def _enqueue(self, body: wire.Body) -> _Ticket:
        """Send a request until it is accepted."""
        with self._lock:
            self._turn += 1
            turn = self._turn
        places = len(self._where.enqueue)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(len(body))}
        timeout = httpx.Timeout(10.0, read=60.0, write=30.0 + len(body) / SLOWEST)
        waiting = _Waiting(self, "take a request")
        while True:
            for number in range(places):
                place = (turn + number) % places
                answer = waiting.ask(self._where.enqueue[place], content=body, headers=headers, timeout=timeout)
                if answer is None:
                    continue
                if answer.status_code == 200:
                    found = _json(answer)
                    if isinstance(found, dict) and isinstance(found.get("uuid"), str):
                        replica = found.get("replica_id")
                        return _Ticket(found["uuid"], str(replica) if replica is not None else None, place)
                    raise RewardError(f"{self.name}: the answer to a request has no uuid: {answer.text[:200]!r}")
                waiting.refused(answer)
            waiting.pause()

    def _pull(self, ticket: _Ticket, name: str) -> Any:
        """Ask for a result until it is there."""
        form = {"uuid": ticket.uuid, "type": name, "wait": str(HOLD_S)}
        headers = {wire.TARGET_HEADER: ticket.replica} if ticket.replica is not None else {}
        end = time.monotonic() + self._deadline_s
        waiting = _Waiting(self, f"answer for reward {name!r}")
        pause, unknown = FIRST_PAUSE_S, 0
        while True:
            answer = None
            for url in self._where.fetch_first(ticket.place):
                answer = waiting.ask(url, data=form, headers=headers)
                if answer is not None:
                    break
            asked = time.monotonic()
            if answer is None or answer.status_code not in (200, 400):
                if answer is not None:
                    waiting.refused(answer)
                waiting.pause()
                end += time.monotonic() - asked  # silence has its own limit
                continue
            found = _json(answer)
            if answer.status_code == 200:
                return found
            unknown = unknown + 1 if isinstance(found, dict) and found.get("state") == wire.UNKNOWN else 0
            if unknown >= LOST_AFTER:
                raise _Lost("a request was lost in a restart")
            if asked > end:
                raise _Lost(f"no scores of {name!r} within {self._deadline_s:g} s")
            if answer.elapsed.total_seconds() < HOLD_S / 2:
                self.sleep(pause * self._jitter.uniform(0.5, 1.5))
                pause = min(1.5 * pause, LONGEST_POLL_S)

    # ---- the service as a whole

    def ping(self) -> None:
        """Look whether the service is there and takes the token.

        Raises:
            RewardError: When it refuses. One that does not answer is only told of.
        """
        for url in self._where.enqueue:
            base, slash, last = url.rpartition("/")
            if not slash or last != "enqueue":
                continue
            try:
                answer = self._client.post(f"{base}/ping", data={"info_data": "{}"})
            except httpx.HTTPError as error:
                self.say(f"reward service {url} does not answer yet ({_words(error)})")
                continue
            if answer.status_code in (401, 403, 404, 405):
                raise RewardError(self.refusal(url, answer))

    def refusal(self, url: str, answer: httpx.Response) -> str:
        """A refusal in words."""
        found = _json(answer)
        message = found.get("message") or found.get("detail") if isinstance(found, dict) else None
        words = str(message or answer.text[:200] or answer.reason_phrase)
        advice = "; see REMOTE_REWARD_TOKEN" if answer.status_code in (401, 403) else ""
        return f"reward service {url} refused with {answer.status_code}: {words}{advice}"

    def post(self, url: str, **request: Any) -> httpx.Response:
        """One POST; raises httpx.HTTPError when there is no answer."""
        if self._ending.is_set():
            raise _Closed
        return self._client.post(url, **request)

    def silent(self, cause: str) -> None:
        """Take note that the service does not answer; say so once."""
        with self._lock:
            first = self._silent_since is None
            self._silent_since = self._silent_since or time.monotonic()
        if first:
            self.say(f"{self.name} does not answer ({cause}); waiting for it, at most {self._patience_s:g} s")

    def busy(self, cause: str) -> None:
        """Take note that it answers but takes nothing; say so once a minute."""
        with self._lock:
            now = time.monotonic()
            due = self._busy_said is None or now - self._busy_said > BUSY_EVERY_S
            self._busy_said = now if due else self._busy_said
        if due:
            self.say(f"{cause}; waiting for it, at most {self._patience_s:g} s")

    def heard(self) -> None:
        """Take note that it answers."""
        with self._lock:
            since, self._silent_since = self._silent_since, None
        if since is not None:
            self.say(f"{self.name} answers again after {time.monotonic() - since:.1f} s; going on")

    def patience_left(self, since: float) -> bool:
        """Whether something that began at ``since`` may go on."""
        return time.monotonic() - since < self._patience_s

    def sleep(self, seconds: float) -> None:
        """Wait, unless the run ends."""
        if self._ending.wait(seconds):
            raise _Closed

    def jittered(self, number: int) -> float:
        """Seconds before try ``number``: doubling, with jitter."""
        return min(FIRST_PAUSE_S * 2**number, LONGEST_PAUSE_S) * self._jitter.uniform(0.5, 1.5)

    def close(self) -> None:
        """Let waiting threads end."""
        self._ending.set()
        with suppress(RuntimeError):
            self._client.close()


class _Waiting:
    """The tries of one call, and how long they may go on."""

    def __init__(self, exchange: Exchange, doing: str):
        self._exchange, self._doing = exchange, doing
        self._since: float | None = None
        self._answered = False
        self._cause, self._number, self._retry_after = "", 0, 0.0

    def ask(self, url: str, **request: Any) -> httpx.Response | None:
        """An answer; None when there was none."""
        try:
            answer = self._exchange.post(url, **request)
        except httpx.HTTPError as error:
            self._note(f"{url}: {_words(error)}")
            self._answered = False
            return None
        self._answered = True
        self._exchange.heard()
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
            raise RewardError(self._exchange.refusal(str(answer.request.url), answer))
        self._note(self._exchange.refusal(str(answer.request.url), answer))
        with suppress(ValueError):
            self._retry_after = min(max(float(answer.headers.get("Retry-After", "0")), 0.0), 60.0)

    def pause(self) -> None:
        """Wait before the next try.

        Raises:
            RewardError: When it was tried for long enough.
        """
        since = self._since or time.monotonic()
        (self._exchange.busy if self._answered else self._exchange.silent)(self._cause)
        if not self._exchange.patience_left(since):
            waited = time.monotonic() - since
            raise RewardError(f"{self._exchange.name} did not {self._doing} for {waited:.0f} s; last: {self._cause}")
        self._exchange.sleep(max(self._exchange.jittered(self._number), self._retry_after))
        self._number, self._retry_after = self._number + 1, 0.0


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except (ValueError, RecursionError):
        return None


def _words(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
