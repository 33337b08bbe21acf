"""What the service has accepted: jobs, the lines in front of scorers, and results on their way to the store."""

import asyncio
import sys
import time
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sanarl.rewards import answers
from sanarl.rewards.server.intake import Received
from sanarl.rewards.server.metrics import Metrics
from sanarl.rewards.server.settings import Service
from sanarl.rewards.server.store import Store, StoreDown
from sanarl.rewards.wire import Head

DECODERS = {16: "latents of Wan 2.1", 48: "latents of Wan 2.2"}
"""Channels of latents -> the line that they wait in."""
FIRST_GUESS_S = 2.0


class Full(Exception):
    """No room for another request."""

    def __init__(self, retry_after_s: int):
        super().__init__(f"the queue is full; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


@dataclass
class Job:
    """A request that is being worked on."""

    head: Head
    path: Path
    nbytes: int
    uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    started: float = field(default_factory=time.monotonic)
    remaining: set[str] = field(default_factory=set)
    media_type: str = "image"
    decoded_s: float = 0.0

    @property
    def decoded_path(self) -> Path:
        """Where a decoder writes the clips."""
        return self.path.with_name(f"{self.path.name}.decoded")


@dataclass
class Task:
    """A job in front of one scorer or decoder."""

    job: Job
    label: str
    losses: int = 0
    """Processes that ended while they worked on it."""


class Line:
    """Tasks that wait for the processes of one label."""

    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()
        self.filled = asyncio.Event()

    def put(self, task: Task, first: bool = False) -> None:
        """Let a task wait, at the end or at the front."""
        (self.tasks.appendleft if first else self.tasks.append)(task)
        self.filled.set()

    def take(self) -> Task | None:
        """The next task, if one waits."""
        task = self.tasks.popleft() if self.tasks else None
        if not self.tasks:
            self.filled.clear()
        return task


class Board:
    """Jobs between arrival and result.

    Args:
        labels: Rewards that are served.
        decoders: Lines of ``DECODERS`` that are served.
        store: Where results go.
        limits: Of the queue.
        metrics: What is counted.
    """

    def __init__(self, labels: list[str], decoders: list[str], store: Store, limits: Service, metrics: Metrics):
        self.lines = {name: Line() for name in (*labels, *decoders)}
        self.labels, self.store, self.metrics = set(labels), store, metrics
        self.jobs: dict[str, Job] = {}
        self.unpulled: dict[tuple[str, str], float] = {}  # when it is forgotten, the oldest first
        self.requests, self.nbytes = 0, 0
        self.news = asyncio.Event()
        """Happens when the next result is kept."""
        self._limits = limits
        self._typical_s = FIRST_GUESS_S
        self._putting: set[asyncio.Task[None]] = set()

    # ---- room

    def reserve(self, nbytes: int) -> None:
        """Keep room for a request.

        Raises:
            Full: When there is none.
        """
        limits = self._limits
        over = self.nbytes + nbytes > limits.queue_mb * 1_000_000 and self.requests > 0
        if over or self.requests >= limits.queue_size:
            raise Full(min(max(round(self._typical_s), 1), 30))
        self.requests += 1
        self.nbytes += nbytes

    def release(self, nbytes: int) -> None:
        """Give the room back."""
        self.requests -= 1
        self.nbytes -= nbytes

    # ---- jobs

    async def accept(self, received: Received, path: Path, reserved: int) -> Job:
        """Take charge of a request, of its file and of its room. What cannot be scored has its failure at once.

        Raises:
            StoreDown: When results could not be kept; nothing was taken.
        """
        job = Job(received.head, path, reserved, media_type=received.head.media_type)
        await self.store.open(job.uuid, list(received.head.weights))
        count = len(received.head.prompts)
        latent = received.head.media_type == "latent"
        decoder = DECODERS.get(received.array.shape[1]) if latent and len(received.array.shape) == 5 else None
        job.remaining = set(received.head.weights)
        self.jobs[job.uuid] = job
        waiting = []
        for name, weight in received.head.weights.items():
            if weight <= 0:
                self.finish(job, name, answers.zeros(name, count), "skipped")
            elif name not in self.labels:
                known = ", ".join(sorted(self.labels))
                self.fail(job, name, f"reward {name!r} is not served here; this service has {known}")
            elif received.misfit is not None:
                self.fail(job, name, received.misfit)
            elif latent and decoder not in self.lines:
                self.fail(job, name, "latents are not decoded here; decode_args.model_path is not set")
            else:
                waiting.append(name)
        if waiting and latent and decoder is not None:
            self.lines[decoder].put(Task(job, decoder))
        elif waiting:
            for name in waiting:
                self.lines[name].put(Task(job, name))
        return job

    def decoded(self, task: Task, seconds: float) -> None:
        """Latents have become clips: hand them to the scorers."""
        job = task.job
        job.decoded_s, job.media_type = seconds, "video"
        with suppress(FileNotFoundError):
            job.path.unlink()
        for name in sorted(job.remaining):
            self.lines[name].put(Task(job, name))

    def refuse(self, task: Task, error: str) -> None:
        """A task cannot be done: so its rewards have failed."""
        names = sorted(task.job.remaining) if task.label in DECODERS.values() else [task.label]
        for name in names:
            self.fail(task.job, name, error)

    def fail(self, job: Job, name: str, error: str) -> None:
        """A reward of a job has failed."""
        self.finish(job, name, answers.failure(name, error), "failed")

    def finish(self, job: Job, name: str, text: str, outcome: str = "scored") -> None:
        """A reward of a job has its result, the first and only one."""
        if name not in job.remaining:
            return
        job.remaining.discard(name)
        if not self.store.shared:
            self._forget()
            self.unpulled[job.uuid, name] = time.monotonic() + self._limits.result_s
        self.metrics.add("sanarl_reward_results_total", reward=self.known(name), outcome=outcome)
        task = asyncio.create_task(self._put(job, name, text))
        self._putting.add(task)
        task.add_done_callback(self._putting.discard)

    def known(self, name: str) -> str:
        """A reward's name for metrics and logs: requests may name anything."""
        return name if name in self.labels else "other"

    async def _put(self, job: Job, name: str, text: str) -> None:
        """Keep a result, for as long as a dead store may take to come back; then free what the job held."""
        end = time.monotonic() + self._limits.result_s
        while True:
            try:
                await self.store.put(job.uuid, name, text)
                self.news.set()
                self.news = asyncio.Event()
                break
            except StoreDown as error:
                if time.monotonic() > end:
                    print(f"result of {job.uuid} is lost: {error}", file=sys.stderr, flush=True)
                    break
                await asyncio.sleep(1)
        self.metrics.observe("sanarl_reward_latency_seconds", time.monotonic() - job.started, reward=self.known(name))
        if not job.remaining and self.jobs.pop(job.uuid, None) is not None:
            self._typical_s += 0.2 * (time.monotonic() - job.started - self._typical_s)
            self.release(job.nbytes)
            for path in (job.path, job.decoded_path):
                with suppress(FileNotFoundError):
                    path.unlink()

    def pulled(self, uuid: str, name: str) -> None:
        """A result has reached somebody."""
        self.unpulled.pop((uuid, name), None)

    def _forget(self) -> None:
        """Results that nobody pulls are not waited for longer than they are kept."""
        while self.unpulled and self.unpulled[first := next(iter(self.unpulled))] < time.monotonic():
            del self.unpulled[first]

    # ---- end

    async def drained(self, until: float) -> bool:
        """Wait until everything accepted is finished, and pulled where results end with this process."""
        while self.jobs or self._putting or self.unpulled:
            if time.monotonic() >= until:
                return False
            self._forget()
            await asyncio.sleep(0.05)
        return True
