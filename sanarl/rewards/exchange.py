"""One request to a reward service and its answer, through refusals, silence and restarts; bounded everywhere.

What may pass is tried again for the configured time and ends with exit code 1, for nothing is wrong with the run; what
will not pass ends with 2.
"""

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import numpy as np

from sanarl.rewards import answers, wire
from sanarl.rewards.mix import RewardError
from sanarl.rewards.patience import FIRST_PAUSE_S, STAYED_AWAY, Closed, Patience, Waiting, shown, words

ATTEMPTS = 3
"""Times that a request is sent because the service lost it or was late."""
LOST_AFTER = 3
"""Answers in a row that nobody knows a request, before it is sent again: replicas may be asked in turn."""
HOLD_S = 5.0
"""Seconds that we ask the service to hold a pull; services of Cosmos-RL answer at once."""
LONGEST_POLL_S = 1.0
SLOWEST = 500_000
"""Bytes a second that an upload must reach."""
ANSWER_S = 60.0
"""Seconds from an answer's first line to its end."""
LARGEST_ANSWER = 64_000_000
UPLOADS = 2
"""Requests that are sent to a replica at a time: were all sent at once, none would arrive before all have."""
PREFLIGHT_S = 5.0
"""Seconds that a service gets to answer before a run starts."""


T = TypeVar("T")


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
    only_strict: bool | None = None
    """What the request says as geneval_only_strict; None: nothing."""


@dataclass(frozen=True)
class _Ticket:
    """An accepted request."""

    uuid: str
    replica: str | None
    place: int


class _Lost(Exception):
    """The service does not know the request any more, or is late; the text says which."""


class Exchange:
    """Speaks to a service; used by several threads.

    Args:
        where: The service.
        weights: Rewards that requests name.
        deadline_s: Seconds from an accepted request to its scores.
        patience_s: Seconds to wait for a service that does not answer or has no room.
    """

    def __init__(self, where: Addresses, weights: dict[str, float], deadline_s: float, patience_s: float):
        self.name = f"reward service {', '.join(map(shown, where.enqueue))}"
        self.patience = Patience(self.name, patience_s)
        self._where, self._weights, self._deadline_s = where, weights, deadline_s
        self._headers = {"Authorization": f"Bearer {where.token}"} if where.token else {}
        self._client = httpx.Client(timeout=30.0, limits=httpx.Limits(max_connections=None), headers=self._headers)
        self._uploads = {url: threading.Semaphore(UPLOADS) for url in where.enqueue}
        self._lock = threading.Lock()
        self._turn = 0

    # ---- a request

    def score(self, order: Order) -> list[list[float]]:
        """Every wanted column of an order.

        Raises:
            RewardError: Naming the service, the reward and the cause.
        """
        found = self.ask(order)
        return [self.read(name, order, answers.read_scores, found[name], key) for name, key in order.columns]

    def ask(self, order: Order) -> dict[str, Any]:
        """The answer for every reward of an order's columns.

        Raises:
            RewardError: When the service refuses, or does not answer in time.
        """
        count = len(order.prompts)
        try:
            body = wire.pack(order.prompts, self._weights, order.media, order.metadata, order.only_strict)
        except ValueError as error:
            raise RewardError(
                f"{self.name}, a request that starts with prompt {order.prompts[0]!r}: {error}"
            ) from error
        cause = ""
        for _ in range(ATTEMPTS):
            ticket = self._enqueue(body)
            try:
                return {name: self._pull(ticket, name) for name in dict(order.columns)}
            except _Lost as error:
                cause = str(error)
                self.patience.say(f"{self.name}: {cause}; sending {count} pictures again")
        text = f"{self.name}: {cause}, {ATTEMPTS} times ({count} pictures, first prompt {order.prompts[0]!r})"
        raise RewardError(text, STAYED_AWAY)

    def read(self, name: str, order: Order, reader: Callable[..., T], answer: Any, *what: str) -> T:
        """What ``reader`` finds in the answer for a reward.

        Raises:
            RewardError: When that is no score; with the service, the reward and the first prompt.
        """
        try:
            return reader(answer, *what, len(order.prompts))
        except wire.Malformed as error:
            first = f"{len(order.prompts)} pictures, first prompt {order.prompts[0]!r}"
            raise RewardError(f"reward {name!r} of the {self.name}: {self.clean(str(error))} ({first})") from error

    def _enqueue(self, body: wire.Body) -> _Ticket:
        """Send a request until it is accepted."""
        with self._lock:
            self._turn += 1
            turn = self._turn
        places = len(self._where.enqueue)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(len(body))}
        timeout = httpx.Timeout(10.0, read=60.0, write=30.0 + len(body) / SLOWEST)
        waiting = Waiting(self, "take a request")
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
                    text = self.clean(answer.text[:200])
                    raise RewardError(f"{self.name}: the answer to a request has no uuid: {text!r}")
                waiting.refused(answer)
            waiting.pause()

    def _pull(self, ticket: _Ticket, name: str) -> Any:
        """Ask for a result until it is there."""
        form = {"uuid": ticket.uuid, "type": name, "wait": str(HOLD_S)}
        headers = {wire.TARGET_HEADER: ticket.replica} if ticket.replica is not None else {}
        end = time.monotonic() + self._deadline_s
        waiting = Waiting(self, f"answer for reward {name!r}")
        pause, unknown = FIRST_PAUSE_S, 0
        while True:
            answer, began = None, time.monotonic()
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
            if asked - began < HOLD_S / 2:
                self.patience.sleep(self.patience.jittered(pause))
                pause = min(1.5 * pause, LONGEST_POLL_S)

    # ---- the service as a whole

    def ping(self) -> None:
        """Look whether the service is there and takes the token; replicas that are away beside others are told of.

        Raises:
            RewardError: When it refuses, or no replica answers within ``PREFLIGHT_S``.
        """
        urls = [url for url in self._where.enqueue if url.endswith("/enqueue")]  # others have no ping that we know
        end = time.monotonic() + min(self.patience.patience_s, PREFLIGHT_S)
        while urls:
            away = [cause for url in urls if (cause := self._away(url)) is not None]
            if len(away) < len(urls):
                for cause in away:
                    self.patience.say(f"reward service {cause}; others do, going on without it")
                return
            if time.monotonic() >= end:
                advice = "start it, or see REMOTE_REWARD_ENQUEUE_URL and the url of rewards"
                raise RewardError("\n".join([*(f"reward service {cause}" for cause in away), f"  {advice}"]))
            self.patience.sleep(0.5)

    def _away(self, url: str) -> str | None:
        """Why a replica cannot be used now; None when it can."""
        try:
            answer = self._client.post(f"{url.removesuffix('/enqueue')}/ping", data={"info_data": "{}"}, timeout=5.0)
        except httpx.HTTPError as error:
            return f"{shown(url)} does not answer ({words(error)})"
        if answer.status_code in (401, 403, 404, 405):
            raise RewardError(self.refusal(url, answer))
        return f"{shown(url)} does not answer ({answer.status_code})" if answer.status_code >= 500 else None

    def refusal(self, url: str, answer: httpx.Response) -> str:
        """A refusal in words."""
        found = _json(answer)
        message = found.get("message") or found.get("detail") if isinstance(found, dict) else None
        text = self.clean(str(message or answer.text[:200] or answer.reason_phrase))
        advice = "; see REMOTE_REWARD_TOKEN" if answer.status_code in (401, 403) else ""
        return f"reward service {shown(url)} refused with {answer.status_code}: {text}{advice}"

    def clean(self, text: str) -> str:
        """A service's words without our token, which it may have said back."""
        return text.replace(self._where.token, "***") if self._where.token else text

    def post(self, url: str, **request: Any) -> httpx.Response:
        """One POST; raises httpx.HTTPError when there is no answer, or one that trickles in or does not end."""
        if self.patience.ending.is_set():
            raise Closed
        body = bytearray()
        turn = self._uploads[url] if "content" in request else nullcontext()
        with turn, self._client.stream("POST", url, **request) as answer:
            end = time.monotonic() + ANSWER_S
            for chunk in answer.iter_bytes():
                body += chunk
                if len(body) > LARGEST_ANSWER:
                    raise httpx.ReadError(f"the answer has more than {LARGEST_ANSWER} bytes")
                if time.monotonic() > end:
                    raise httpx.ReadTimeout(f"the answer was not complete after {ANSWER_S:g} s")
        kept = {name: answer.headers[name] for name in ("Content-Type", "Retry-After") if name in answer.headers}
        return httpx.Response(answer.status_code, headers=kept, content=bytes(body), request=answer.request)

    def close(self) -> None:
        """Let waiting threads end."""
        self.patience.ending.set()
        with suppress(RuntimeError):
            self._client.close()


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except (ValueError, RecursionError):
        return None
