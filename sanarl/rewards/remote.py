"""Rewards that a service scores, with the interface of ``local.Scoring``: submit while sampling, collect once."""

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

from sanarl.config.schema.rewards import RemoteReward
from sanarl.rewards import answers
from sanarl.rewards.exchange import PREFLIGHT_S, Addresses, Exchange, Order
from sanarl.rewards.frames import finite_rows
from sanarl.rewards.mix import RewardError, Scores
from sanarl.rewards.patience import STAYED_AWAY
from sanarl.rewards.services import Labelled, combine, keys_read, labelled, score_key, services, strictness

CONCURRENT = 8
"""Requests that are on their way to a service at a time."""

Columns = dict[str, list[float]]
"""Scores of some rows by the name that reports use."""


def as_wire(media: Tensor) -> Tensor:
    """Media (B, F, 3, H, W) in [0, 1] as the wire has them: uint8 (B, H, W, 3), clips (B, 3, F, H, W)."""
    media = media.detach()
    turned = media[:, 0].permute(0, 2, 3, 1) if media.shape[1] == 1 else media.transpose(1, 2)
    pixels = torch.empty(turned.shape, dtype=torch.uint8, device=media.device)
    for row, sample in zip(pixels, turned, strict=True):  # one at a time stays in the cache
        row.copy_(sample.mul(255).round_().clamp_(0, 255))
    return pixels


@dataclass
class _Rows:
    """Rows that wait to be sent, of one size and one purpose."""

    rows: list[int]
    media: Tensor  # (B, ...) uint8
    finite: Tensor  # (B,) bool
    prompts: list[str]
    metadata: list[dict[str, Any]]
    only_strict: bool

    def __len__(self) -> int:
        return len(self.rows)

    def split(self, count: int) -> tuple["_Rows", "_Rows"]:
        """The first ``count``, and the rest."""
        halves = [
            _Rows(self.rows[s], self.media[s], self.finite[s], self.prompts[s], self.metadata[s], self.only_strict)
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
            self.only_strict,
        )

    def fits(self, other: "_Rows") -> bool:
        """Whether these and others may be one request."""
        return self.media.shape[1:] == other.media.shape[1:] and self.only_strict == other.only_strict


class _Service:
    """One service and what it scores."""

    def __init__(self, where: Addresses, functions: list[Labelled], settings: RemoteReward):
        self.functions = functions
        weights = {function.name: function.weight for _, function in functions}
        self.exchange = Exchange(where, weights, settings.deadline_s, settings.patience_s)

    def score(self, rows: _Rows) -> Columns:
        """Every label's scores of some rows, and what else the service told of them, as ``name/key``.

        Raises:
            RewardError: For pictures that are not finite, and as the exchange does.
        """
        finite = rows.finite.tolist()
        if not all(finite):
            prompt = rows.prompts[finite.index(False)]
            raise RewardError(f"found NaN or infinity in the picture for prompt {prompt!r}")
        wanted = [(f.name, score_key(f)) for _, f in self.functions]
        strict = strictness(self.functions, rows.only_strict)
        order = Order(rows.prompts, rows.media.cpu().numpy(), rows.metadata, wanted, strict)
        found = self.exchange.ask(order)
        columns: Columns = {}
        for label, function in self.functions:
            answer = found[function.name]
            columns[label] = self.exchange.read(function.name, order, answers.read_scores, answer, score_key(function))
        for name, answer in found.items():
            columns |= self._others(name, self.exchange.read(name, order, answers.columns_of, answer), bool(strict))
        return columns

    def _others(self, name: str, columns: Columns, strict: bool) -> Columns:
        """What an answer has beside the scores that are asked for."""
        mine = [(label, keys_read(f)) for label, f in self.functions if f.name == name]
        shown = {keys[0] for _, keys in mine if len(keys) == 1}
        left_out = {answers.PUBLISHED} if strict and name in answers.WITH_TAGS else set()
        return {f"{name}/{key}": values for key, values in columns.items() if key not in shown | left_out}


@dataclass
class _Sent:
    """Rows on their way, and what each service says of them."""

    rows: _Rows
    answers: list[Future[Columns]]


class RemoteScoring:
    """Lets services score: requests of up to ``batch_size`` samples, several at a time, while sampling goes on.

    Args:
        settings: Which rewards, and how their scores become one.
        where: The service of rewards without a url of their own; None: the environment's.
        say: Takes a line for the person who watches the run: that it waits, and that it goes on.

    Raises:
        UserError: A service is missing, or a url or ``only_strict`` cannot be.
    """

    def __init__(
        self, settings: RemoteReward, where: Addresses | None = None, say: Callable[[str], None] | None = None
    ):
        self.settings = settings
        self._functions = labelled(settings)
        found = services(settings, where)
        self._services = [_Service(at, functions, settings) for at, functions in found.items()]
        self.say = say or (lambda text: print(text, file=sys.stderr, flush=True))
        self._waiting: _Rows | None = None
        self._taken: set[int] = set()
        self._sent: list[_Sent] = []
        self._queue: queue.SimpleQueue[tuple[_Service, _Rows, Future[Columns]] | None] = queue.SimpleQueue()
        self._closed = False
        self._workers = CONCURRENT * len(self._services)
        for number in range(self._workers):
            threading.Thread(target=self._work, name=f"remote-reward-{number}", daemon=True).start()

    @property
    def labels(self) -> list[str]:
        """What reports call the rewards."""
        return [label for label, _ in self._functions]

    @property
    def say(self) -> Callable[[str], None]:
        """Takes a line for the person who watches the run."""
        return self._say

    @say.setter
    def say(self, say: Callable[[str], None]) -> None:
        self._say = say
        for service in self._services:
            service.exchange.patience.say = say

    def check(self) -> None:
        """Ask every service whether it is there and takes the token.

        Raises:
            RewardError: When one refuses or does not answer.
        """
        for service in self._services:
            service.exchange.ping()

    def trial(
        self, media: Tensor, prompts: Sequence[str], metadata: Sequence[dict[str, Any]], only_strict: bool
    ) -> Scores:
        """Score some samples before a run starts; nobody is waited for who does not answer."""
        for service in self._services:
            service.exchange.patience.silence_s = min(self.settings.patience_s, PREFLIGHT_S)
        try:
            self.submit(range(len(media)), media, prompts, metadata, only_strict)
            return self.collect(0.0)
        finally:
            for service in self._services:
                service.exchange.patience.silence_s = self.settings.patience_s

    def submit(
        self,
        rows: Sequence[int],
        media: Tensor,
        prompts: Sequence[str],
        metadata: Sequence[dict[str, Any]],
        only_strict: bool = False,
    ) -> None:
        """Take some rows; send them as soon as they fill a request.

        Args:
            rows: Distinct row numbers, which ``collect`` sorts by.
            media: (B, F, 3, H, W) in [0, 1]; rounded to 8 bits.
            prompts: B prompts.
            metadata: B dicts, which travel along.
            only_strict: The scores are for training; see :class:`~sanarl.rewards.mix.Mix`.

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
        new = _Rows(rows, as_wire(media), finite_rows(media), list(prompts), list(metadata), only_strict)
        if self._waiting is not None and not self._waiting.fits(new):
            self._flush()
        waiting = new if self._waiting is None else self._waiting.joined(new)
        while len(waiting) >= self.settings.batch_size:
            full, waiting = waiting.split(self.settings.batch_size)
            self._send(full)
        self._waiting = waiting if len(waiting) else None

    def _check_tags(self, prompts: Sequence[str], metadata: Sequence[dict[str, Any]]) -> None:
        """Find out here what the service could only fail on."""
        for _, function in self._functions:
            if function.name not in answers.WITH_TAGS:
                continue
            for prompt, one in zip(prompts, metadata, strict=True):
                lacking = [key for key in ("tag", "include") if key not in one]
                if lacking:
                    found = f"found the metadata {sorted(one)} for prompt {prompt!r}"
                    raise RewardError(f"reward {function.name!r} needs {' and '.join(lacking)} of every item; {found}")

    def _flush(self) -> None:
        if self._waiting is not None:
            self._send(self._waiting)
        self._waiting = None

    def _send(self, rows: _Rows) -> None:
        sent = _Sent(rows, [Future() for _ in self._services])
        self._sent.append(sent)
        for service, future in zip(self._services, sent.answers, strict=True):
            self._queue.put((service, rows, future))

    def _work(self) -> None:
        while (entry := self._queue.get()) is not None:
            service, rows, future = entry
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(service.score(rows))
                except BaseException as error:  # raised again by collect
                    future.set_exception(error)
            del entry, rows, future  # the pictures

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
        futures = [future for one in sent for future in one.answers]
        done, pending = wait(futures, max(0.0, limit - time.monotonic()), FIRST_EXCEPTION)
        for future in pending:
            future.cancel()
        for future in futures:
            if future in done and (error := future.exception()) is not None:
                raise error
        if pending:
            late = [s.exchange.name for n, s in enumerate(self._services) if any(o.answers[n] in pending for o in sent)]
            count = sum(len(one.rows) for one in sent if pending & set(one.answers))
            raise RewardError(f"{' and '.join(late)} did not score {count} pictures in time", STAYED_AWAY)
        return self._joined(sent)

    def _joined(self, sent: list[_Sent]) -> Scores:
        labels = self.labels
        if not sent:
            return Scores(torch.zeros(0), {label: torch.zeros(0) for label in labels})
        answered = [{k: v for future in one.answers for k, v in future.result().items()} for one in sent]
        told = set[str].intersection(*(set(one) for one in answered)) - set(labels)  # by every answer
        columns = {label: [v for one in answered for v in one[label]] for label in (*labels, *sorted(told))}
        order = torch.tensor([row for one in sent for row in one.rows.rows]).argsort()
        total = torch.tensor(combine(self.settings, columns), dtype=torch.float64).float()[order]
        return Scores(total, {label: torch.tensor(values)[order] for label, values in columns.items()})

    def close(self) -> None:
        """Drop what was not collected and let the threads end; what is on its way is not waited for."""
        self._closed = True
        for one in self._sent:
            for future in one.answers:
                future.cancel()
        self._sent, self._waiting = [], None
        for service in self._services:
            service.exchange.close()
        for _ in range(self._workers):
            self._queue.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
