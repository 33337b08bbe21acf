"""Rewards of this process, scored in threads while sampling goes on."""

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any, Self

import torch
from torch import Tensor

from sanarl.rewards.mix import Mix, RewardError, Scores
from sanarl.rewards.resting import Resting

JOIN_S = 1.0
"""Seconds that an idle thread gets to end."""


class _Batch:
    """Some rows on their way through the mix."""

    def __init__(
        self, rows: list[int], media: Tensor, prompts: list[str], metadata: list[dict[str, Any]], only_strict: bool
    ):
        self.rows, self.media, self.prompts, self.metadata = rows, media, prompts, metadata
        self.only_strict = only_strict
        self.running: str | None = None  # the reward at work, for the error when a deadline passes
        self.result: Future[Scores] = Future()

    def started(self, name: str) -> None:
        self.running = name

    def score(self, mix: Mix) -> None:
        if not self.result.set_running_or_notify_cancel():
            return
        try:
            scores = mix(self.media, self.prompts, self.metadata, self.started, self.only_strict)
        except BaseException as error:  # raised again by collect
            self.result.set_exception(error)
            return
        self.media = torch.zeros(0)  # the batch is kept until it is collected, its pictures are not
        self.result.set_result(scores)


class Scoring:
    """Scores batches in worker threads: ``submit`` while sampling, ``collect`` once.

    The threads are daemons, unlike those of ``ThreadPoolExecutor``, which the interpreter joins when it exits: a reward
    that hangs must not keep a run from ending.

    Args:
        mix: The rewards. With more than one worker they are called from several threads at once.
        workers: Number of threads.
        rests: Whether reward models leave the device whenever all scores are there.
    """

    def __init__(self, mix: Mix, workers: int = 1, rests: bool = False):
        self.mix = mix
        self._resting = Resting(reward for _, reward in mix.parts.values()) if rests else None
        self._queue: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._batches: list[_Batch] = []
        self._stuck = False
        self._closed = False
        self._threads = [threading.Thread(target=self._work, name=f"reward-{i}", daemon=True) for i in range(workers)]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while (batch := self._queue.get()) is not None:
            batch.score(self.mix)
            del batch  # its pictures

    def submit(
        self,
        rows: Sequence[int],
        media: Tensor,
        prompts: Sequence[str],
        metadata: Sequence[dict[str, Any]],
        only_strict: bool = False,
    ) -> None:
        """Queue some rows and return at once.

        Args:
            rows: Distinct row numbers, which ``collect`` sorts by.
            media: (B, F, 3, H, W) in [0, 1]; must not be changed until ``collect`` returned.
            prompts: B prompts.
            metadata: B dicts.
            only_strict: The scores are for training; see :class:`~sanarl.rewards.mix.Mix`.

        Raises:
            ValueError: If a row was already submitted or the lengths differ.
        """
        rows = [int(row) for row in rows]
        taken = {row for batch in self._batches for row in batch.rows}
        if len(set(rows)) != len(rows) or taken & set(rows):
            raise ValueError(f"rows {rows} were submitted twice")
        if not len(rows) == media.shape[0] == len(prompts) == len(metadata):
            lengths = f"{len(rows)} rows, {media.shape[0]} media, {len(prompts)} prompts, {len(metadata)} metadata"
            raise ValueError(f"lengths differ: {lengths}")
        if self._closed:
            raise ValueError("submit after close")
        if rows:
            batch = _Batch(rows, media, list(prompts), list(metadata), only_strict)
            self._batches.append(batch)
            self._queue.put(batch)

    def collect(self, deadline_s: float) -> Scores:
        """Wait for everything submitted, return it in ascending row order and forget it.

        The weighted sum is also a part of its own, ``avg``.

        Args:
            deadline_s: Seconds to wait from now.

        Raises:
            RewardError: If a reward failed in any batch, or is still at work when the time is over; it is named.
        """
        batches, self._batches = sorted(self._batches, key=lambda b: b.rows), []
        limit = time.monotonic() + deadline_s
        done, pending = wait([b.result for b in batches], max(0.0, limit - time.monotonic()), FIRST_EXCEPTION)
        for future in pending:
            future.cancel()
        for batch in batches:
            if batch.result in done and (error := batch.result.exception()) is not None:
                raise error
        if pending:
            raise self._late([b for b in batches if b.result in pending], deadline_s)
        self.rest()
        return self._joined(batches)

    def rest(self) -> None:
        """Take reward models off the device until the next batch, where that is asked for; nothing is being scored."""
        if self._resting is not None:
            self._resting.rest()

    def _late(self, batches: list[_Batch], deadline_s: float) -> RewardError:
        running = [b for b in batches if not b.result.cancelled() and not b.result.done()]
        count = sum(len(b.rows) for b in batches)
        text = f"{count} pictures were not scored within {deadline_s:g} s"
        if running:
            self._stuck = True
            batch = running[0]
            text = f"reward {batch.running!r} is still at work on prompt {batch.prompts[0]!r}: {text}"
        elif self._stuck:
            text = f"every worker is held by a reward that missed an earlier deadline: {text}"
        return RewardError(text)

    def _joined(self, batches: list[_Batch]) -> Scores:
        if not batches:
            return Scores(torch.zeros(0), {name: torch.zeros(0) for name in (*self.mix.names, "avg")})
        scores = [b.result.result() for b in batches]
        names = list(scores[0].parts)
        for batch, score in zip(batches, scores, strict=True):
            if set(score.parts) != set(names):
                odd = sorted(set(score.parts) ^ set(names))
                raise RewardError(f"the scores {odd} came for some batches only (prompt {batch.prompts[0]!r})")
        order = torch.tensor([row for b in batches for row in b.rows]).argsort()
        total = torch.cat([s.total for s in scores])[order]
        parts = {name: torch.cat([s.parts[name] for s in scores])[order] for name in names}
        return Scores(total, parts | {"avg": total.clone()})

    def close(self) -> None:
        """Drop what was not collected; threads that are still at work are daemons and are not waited for."""
        self._closed = True
        for batch in self._batches:
            batch.result.cancel()
        self._batches = []
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(timeout=0.0 if self._stuck else JOIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
