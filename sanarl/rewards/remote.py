"""Rewards that a service scores, with the interface of ``local.Scoring``: submit while sampling, collect once."""

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from sanarl.config.schema.rewards import RemoteReward, RewardFunction
from sanarl.errors import UserError
from sanarl.rewards import wire
from sanarl.rewards.exchange import Addresses, Exchange, Order
from sanarl.rewards.mix import RewardError, Scores

CONCURRENT = 8
"""Requests that are on their way at a time."""


def addresses() -> Addresses:
    """Where the service is, from the environment variables that Cosmos-RL reads.

    Raises:
        UserError: Naming what is not set.
    """
    names = ("REMOTE_REWARD_ENQUEUE_URL", "REMOTE_REWARD_FETCH_URL")
    found = [tuple(url.strip() for url in os.environ.get(name, "").split(",") if url.strip()) for name in names]
    missing = [name for name, urls in zip(names, found, strict=True) if not urls]
    if missing:
        raise UserError(
            f"use_remote_reward is true, but {' and '.join(missing)} is not set in the environment; accepted: "
            "http://HOST:PORT/api/reward/enqueue and .../api/reward/pull (several replicas separated by commas)"
        )
    for url in (*found[0], *found[1]):
        if not url.startswith(("http://", "https://")):
            raise UserError(f"found {url!r} as the address of the reward service; accepted: http:// or https://")
    return Addresses(found[0], found[1], os.environ.get("REMOTE_REWARD_TOKEN", ""))


def as_wire(media: Tensor) -> Tensor:
    """Media (B, F, 3, H, W) in [0, 1] as the wire has them: uint8 (B, H, W, 3), clips (B, 3, F, H, W)."""
    pixels = media.detach().mul(255).round_().clamp_(0, 255).to(torch.uint8)
    return (pixels[:, 0].permute(0, 2, 3, 1) if media.shape[1] == 1 else pixels.transpose(1, 2)).contiguous()


def combine(settings: RemoteReward, scores: dict[str, list[float]]) -> list[float]:
    """Scores by label -> one reward a picture: each clipped, weighted, summed; the sum clipped and scaled."""
    total = torch.zeros(len(next(iter(scores.values()))), dtype=torch.float64)
    for label, function in labelled(settings):
        column = torch.tensor(scores[label], dtype=torch.float64)
        total += column.clamp(function.clip_min, function.clip_max) * function.weight
    return (total.clamp(settings.reward_clip_min, settings.reward_clip_max) * settings.scale).tolist()


def labelled(settings: RemoteReward) -> list[tuple[str, RewardFunction]]:
    """The functions that count, by the name that reports use: of several with one name, with their keys."""
    functions = [function for function in settings.reward_fns if function.weight > 0]
    names = [function.name for function in functions]
    return [(f.name if names.count(f.name) == 1 else f"{f.name}/{f.score_key or f.name}", f) for f in functions]


@dataclass
class _Rows:
    """Rows that wait to be sent, of one size."""

    rows: list[int]
    media: Tensor  # (B, ...) uint8
    finite: Tensor  # (B,) bool
    prompts: list[str]
    metadata: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.rows)

    def split(self, count: int) -> tuple["_Rows", "_Rows"]:
        """The first ``count``, and the rest."""
        halves = [
            _Rows(self.rows[s], self.media[s], self.finite[s], self.prompts[s], self.metadata[s])
            for s in (slice(count), slice(count, None))
        ]
        return halves[0], halves[1]

    def joined(self, other: "_Rows") -> "_Rows":
        """These and more."""
        return _Rows(
            self.rows + other.rows,
            torch.cat([self.media, other.media]),
            torch.cat([self.finite, other.finite]),
            self.prompts + other.prompts,
            self.metadata + other.metadata,
        )


class RemoteScoring:
    """Lets a service score: requests of up to ``batch_size`` samples, several at a time, while sampling goes on.

    Args:
        settings: Which rewards, and how their scores become one.
        where: The service.
        say: Takes a line for the person who watches the run: that it waits, and that it goes on.
    """

    def __init__(self, settings: RemoteReward, where: Addresses, say: Callable[[str], None] | None = None):
        self.settings = settings
        self._functions = labelled(settings)
        weights = {function.name: function.weight for _, function in self._functions}
        self._exchange = Exchange(where, weights, settings.deadline_s, settings.patience_s)
        self._exchange.say = say or (lambda text: print(text, file=sys.stderr, flush=True))
        self._waiting: _Rows | None = None
        self._taken: set[int] = set()
        self._sent: list[tuple[_Rows, Future[dict[str, list[float]]]]] = []
        self._queue: queue.SimpleQueue[tuple[_Rows, Future[dict[str, list[float]]]] | None] = queue.SimpleQueue()
        self._closed = False
        for number in range(CONCURRENT):
            threading.Thread(target=self._work, name=f"remote-reward-{number}", daemon=True).start()

    @property
    def say(self) -> Callable[[str], None]:
        """Takes a line for the person who watches the run."""
        return self._exchange.say

    @say.setter
    def say(self, say: Callable[[str], None]) -> None:
        self._exchange.say = say

    def check(self) -> None:
        """Ask the service whether it is there and takes the token; one that does not answer is waited for later.

        Raises:
            UserError: When it refuses.
        """
        self._exchange.ping()

    def submit(
        self, rows: Sequence[int], media: Tensor, prompts: Sequence[str], metadata: Sequence[dict[str, Any]]
    ) -> None:
        """Take some rows; send them as soon as they fill a request.

        Args:
            rows: Distinct row numbers, which ``collect`` sorts by.
            media: (B, F, 3, H, W) in [0, 1]; rounded to 8 bits.
            prompts: B prompts.
            metadata: B dicts, which travel along.

        Raises:
            ValueError: If a row was already submitted or the lengths differ.
            RewardError: If a reward needs metadata that a sample lacks.
        """
        rows = [int(row) for row in rows]
        if len(set(rows)) != len(rows) or self._taken & set(rows):
            raise ValueError(f"rows {rows} were submitted twice")
        if not len(rows) == media.shape[0] == len(prompts) == len(metadata):
            lengths = f"{len(rows)} rows, {media.shape[0]} media, {len(prompts)} prompts, {len(metadata)} metadata"
            raise ValueError(f"lengths differ: {lengths}")
        if self._closed:
            raise ValueError("submit after close")
        if not rows:
            return
        self._check_tags(prompts, metadata)
        self._taken |= set(rows)
        finite = torch.isfinite(media).flatten(1).all(1)
        new = _Rows(rows, as_wire(media), finite, list(prompts), list(metadata))
        if self._waiting is not None and self._waiting.media.shape[1:] != new.media.shape[1:]:
            self._flush()
        self._waiting = new if self._waiting is None else self._waiting.joined(new)
        while len(self._waiting) >= self.settings.batch_size:
            full, self._waiting = self._waiting.split(self.settings.batch_size)
            self._send(full)

    def _check_tags(self, prompts: Sequence[str], metadata: Sequence[dict[str, Any]]) -> None:
        """Find out here what the service could only fail on."""
        for _, function in self._functions:
            if function.name not in wire.WITH_TAGS:
                continue
            for prompt, one in zip(prompts, metadata, strict=True):
                lacking = [key for key in ("tag", "include") if key not in one]
                if lacking:
                    found = f"found the metadata {sorted(one)} for prompt {prompt!r}"
                    raise RewardError(f"reward {function.name!r} needs {' and '.join(lacking)} of every item; {found}")

    def _flush(self) -> None:
        if self._waiting is not None and len(self._waiting):
            self._send(self._waiting)
        self._waiting = None

    def _send(self, rows: _Rows) -> None:
        entry = (rows, Future())
        self._sent.append(entry)
        self._queue.put(entry)

    def _work(self) -> None:
        while (entry := self._queue.get()) is not None:
            rows, future = entry
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(self._score(rows))
                except BaseException as error:  # raised again by collect
                    future.set_exception(error)
            del entry, rows, future  # the pictures

    def _score(self, rows: _Rows) -> dict[str, list[float]]:
        """Every label's scores of some rows, and ``reward``'s total."""
        finite = rows.finite.tolist()
        if not all(finite):
            prompt = rows.prompts[finite.index(False)]
            raise RewardError(f"found NaN or infinity in the picture for prompt {prompt!r}")
        columns = [(f.name, f.score_key or f.name) for _, f in self._functions]
        order = Order(rows.prompts, rows.media.cpu().numpy(), rows.metadata, columns)
        found = self._exchange.score(order)
        return dict(zip((label for label, _ in self._functions), found, strict=True))

    def collect(self, deadline_s: float) -> Scores:
        """Wait for everything submitted, return it in ascending row order and forget it.

        Args:
            deadline_s: Seconds to wait from now; the times that the settings give the service are waited in any case.

        Raises:
            RewardError: If the service refused, failed, or stayed away; it is named.
        """
        self._flush()
        sent, self._sent, self._taken = self._sent, [], set()
        settings = self.settings
        limit = time.monotonic() + max(deadline_s, settings.deadline_s + settings.patience_s)
        futures = [future for _, future in sent]
        done, pending = wait(futures, max(0.0, limit - time.monotonic()), FIRST_EXCEPTION)
        for future in pending:
            future.cancel()
        for future in futures:
            if future in done and (error := future.exception()) is not None:
                raise error
        if pending:
            count = sum(len(rows) for rows, future in sent if future in pending)
            raise RewardError(f"{self._exchange.name} did not score {count} pictures in time")
        return self._joined(sent)

    def _joined(self, sent: list[tuple[_Rows, Future[dict[str, list[float]]]]]) -> Scores:
        labels = [label for label, _ in self._functions]
        columns: dict[str, list[float]] = {label: [] for label in labels}
        for _, future in sent:
            for label, values in future.result().items():
                columns[label] += values
        if not sent:
            return Scores(torch.zeros(0), {label: torch.zeros(0) for label in labels})
        order = torch.tensor([row for rows, _ in sent for row in rows.rows]).argsort()
        total = torch.tensor(combine(self.settings, columns), dtype=torch.float64).float()[order]
        return Scores(total, {label: torch.tensor(values)[order] for label, values in columns.items()})

    def close(self) -> None:
        """Drop what was not collected and let the threads end; what is on its way is not waited for."""
        self._closed = True
        for _, future in self._sent:
            future.cancel()
        self._sent, self._waiting = [], None
        self._exchange.close()
        for _ in range(CONCURRENT):
            self._queue.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
