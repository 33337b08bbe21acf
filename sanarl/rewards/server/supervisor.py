"""Keeps one scorer's process alive and gives it the tasks of its line."""

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable

from sanarl.rewards.server.board import DECODERS, Board, Line, Task
from sanarl.rewards.server.process import Message, NotLoaded, Process
from sanarl.rewards.server.settings import Service

WINDOW = 2
"""Tasks with a process at a time: one that is scored, one whose media are loaded."""
LOSSES = 2
"""Processes that a task may cost before it is given up."""
LONGEST_PAUSE_S = 60.0


class Supervisor:
    """One scorer's process for as long as the service lives.

    Args:
        label: Its line.
        python: Its interpreter.
        spec: What the process loads.
        board: Where tasks come from and results go.
        limits: Times.
        alone: Tells whether no other process serves the line.
    """

    def __init__(
        self, label: str, python: str, spec: Message, board: Board, limits: Service, alone: Callable[[str], bool]
    ):
        self.label, self.state, self.cause = label, "loading", ""
        self.first_load: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._python, self._spec, self._board, self._limits, self._alone = python, spec, board, limits, alone
        self._line: Line = board.lines[label]
        self._with_process: deque[Task] = deque()
        self._head_since = 0.0
        self._pinged: float | None = None
        self._heard = 0.0

    async def run(self) -> None:
        """Start, serve, start again; until cancelled, or until the first start failed."""
        pause, started = 1.0, 0
        while True:
            try:
                process = await Process.start(self._python, self._spec, self._limits.load_s)
            except NotLoaded as error:
                self.state, self.cause = "down", str(error)
                if not self.first_load.done():
                    self.first_load.set_exception(error)
                    return
                self._say(f"could not be started again: {error}; next try in {pause:g} s")
                self._give_up_waiting()
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                continue
            started += 1
            if started > 1:
                self._board.metrics.add("sanarl_reward_restarts_total", reward=self.label)
                self._say("is back")
            self.state, self.cause = "ready", ""
            if not self.first_load.done():
                for note in process.notes:
                    self._say(note)
                self.first_load.set_result(None)
            began = time.monotonic()
            try:
                cause = await self._serve(process)
            except BaseException:
                process.kill()
                raise
            if cause:
                process.kill()
            self.state = "loading"
            how = await process.end()
            self._say(f"its process {how}{cause}")
            self._put_back(how, blame=not cause)
            pause = 1.0 if time.monotonic() - began > LONGEST_PAUSE_S else pause
            if time.monotonic() - began < 1.0:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)

    def _say(self, text: str) -> None:
        print(f"reward {self.label}: {text}", file=sys.stderr, flush=True)

    def _give_up_waiting(self) -> None:
        """Nobody will take what waits: say so in its results."""
        while self._alone(self.label) and (task := self._line.take()) is not None:
            self._board.refuse(task, f"reward {self.label!r} cannot be loaded again: {self.cause}")

    async def _serve(self, process: Process) -> str:
        """Pass tasks and results until the process is gone or has to go; why, in words."""
        self._pinged, self._heard = None, time.monotonic()
        receiving = asyncio.create_task(process.receive())
        waiting: asyncio.Task[bool] | None = None
        try:
            while True:
                if waiting is None and len(self._with_process) < WINDOW:
                    waiting = asyncio.create_task(self._line.filled.wait())
                both = {receiving} if waiting is None else {receiving, waiting}
                left = self._deadline() - time.monotonic()
                await asyncio.wait(both, timeout=max(left, 0.0), return_when=asyncio.FIRST_COMPLETED)
                if receiving.done():
                    message = receiving.result()
                    if message is None:
                        return ""
                    self._answered(message)
                    receiving = asyncio.create_task(process.receive())
                if waiting is not None and waiting.done():
                    waiting = None
                    if (task := self._line.take()) is not None:
                        await self._hand_over(process, task)
                if time.monotonic() >= self._deadline() and (cause := await self._overdue(process)):
                    return cause
        finally:
            receiving.cancel()
            if waiting is not None:
                waiting.cancel()

    def _deadline(self) -> float:
        if self._with_process:
            return self._head_since + self._limits.score_s
        return (self._heard if self._pinged is None else self._pinged) + self._limits.health_s

    async def _overdue(self, process: Process) -> str:
        if self._with_process:
            task = self._with_process.popleft()
            text = f"reward {self.label!r} did not answer within {self._limits.score_s:g} s; its process was replaced"
            self._board.refuse(task, text)
            return f": a request took longer than service.score_s = {self._limits.score_s:g}"
        if self._pinged is not None:
            return f": it did not answer within service.health_s = {self._limits.health_s:g}"
        self._pinged = time.monotonic()
        await process.send({"kind": "ping"})
        return ""

    async def _hand_over(self, process: Process, task: Task) -> None:
        job, decoding = task.job, task.label in DECODERS.values()
        if not self._with_process:
            self._head_since = time.monotonic()
        self._with_process.append(task)
        clips = job.decoded_path if job.media_type == "video" and job.head.media_type == "latent" else job.path
        message = {
            "kind": "job",
            "id": job.uuid,
            "path": str(job.path if decoding else clips),
            "media_type": job.media_type,
            "prompts": job.head.prompts,
            "metadata": job.head.metadata,
            "only_strict": job.head.only_strict,
            "decoded": job.decoded_s,
            "decoded_path": str(job.decoded_path),
        }
        await process.send(message)

    def _answered(self, message: Message) -> None:
        self._heard, self._pinged = time.monotonic(), None
        if message["kind"] != "done":
            return
        task = self._with_process.popleft()
        assert task.job.uuid == message["id"], "a process answers in the order of its tasks"
        self._head_since = time.monotonic()
        if "error" in message:
            self._board.refuse(task, message["error"])
            return
        if task.label in DECODERS.values():
            self._board.decoded(task, message["seconds"])
            return
        self._board.metrics.add("sanarl_reward_scored_total", len(task.job.head.prompts), reward=self.label)
        self._board.metrics.observe("sanarl_reward_seconds", message["seconds"], reward=self.label)
        self._board.finish(task.job, task.label, message["result"])

    def _put_back(self, how: str, blame: bool) -> None:
        """What the process had goes to the front of the line; the one that it died of (``blame``) only once."""
        tasks, self._with_process = self._with_process, deque()
        for number, task in reversed(list(enumerate(tasks))):
            task.losses += blame and number == 0
            if task.losses >= LOSSES:
                text = f"reward {self.label!r}: its process {how} while it worked on this request, {LOSSES} times"
                self._board.refuse(task, text)
            else:
                self._line.put(task, first=True)
