"""One run: its folder, its ranks, what it says, and when it saves. Knows nothing about models or algorithms."""

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sanarl.errors import UserError
from sanarl.files import remove_partial
from sanarl.runtime import checkpoint, parts
from sanarl.runtime.checkpoint import Stateful
from sanarl.runtime.console import Console
from sanarl.runtime.folder import RunFolder
from sanarl.runtime.meter import Meter
from sanarl.runtime.records import Of, RewardLog
from sanarl.runtime.signals import Signals
from sanarl.runtime.track import Tracker, listed
from sanarl.runtime.world import World


@dataclass(frozen=True)
class Saving:
    """When a run saves, and how much of it stays."""

    enabled: bool
    every: int
    max_keep: int
    export: bool
    at_exit: bool
    beside: bool
    """Write checkpoints in a thread of their own while training goes on."""
    max_hours: float | None
    """End after this time, with a checkpoint."""


@dataclass
class Progress:
    """How far a run has come; part of every checkpoint."""

    step: int = 0
    updates: int = 0
    first_reward: float | None = None
    """Held-out reward of the first evaluation."""
    last_reward: float | None = None
    """Of the last evaluation."""
    best_reward: float | None = None
    """Highest held-out reward so far, and the step it was reached at."""
    best_step: int = 0
    unlogged: dict[str, float] | None = None
    """Metrics of a step whose evaluation could not be finished; it comes first when the run goes on."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what a checkpoint kept."""
        for name in asdict(self).keys() & state.keys():
            setattr(self, name, state[name])

    def rewarded(self, reward: float, step: int) -> None:
        """Take note of a held-out reward after ``step``."""
        if self.first_reward is None:
            self.first_reward = reward
        self.last_reward = reward
        if self.best_reward is None or reward > self.best_reward:
            self.best_reward, self.best_step = reward, step


def size(num_bytes: float) -> str:
    """Bytes for people: 3.1 MB, 19 GB."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.1f} GB"


class Session:
    """The surroundings of a training loop."""

    def __init__(
        self,
        folder: RunFolder,
        world: World,
        identity: str,
        saving: Saving,
        console: Console,
        trackers: list[Tracker],
        log_interval: int,
        total: int,
        signals: Signals | None = None,
    ):
        """Nothing is read or written yet."""
        self.folder, self.world, self.console, self.total = folder, world, console, total
        self.progress, self.signals = Progress(), signals or Signals()
        self._identity, self._saving, self._trackers, self._log_interval = identity, saving, trackers, log_interval
        self._reward_log = RewardLog(folder.rewards)
        self._times: dict[str, float] = {}
        self.meter: Meter | None = None
        """Counts the arithmetic of a step, where that is asked for."""
        self._state: dict[str, Stateful] = {}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._all_write = False
        self._group: Any = None
        self._needed = 0
        self._halt: str | None = None

    # ---- steps

    def begin(self, state: dict[str, Stateful], resume_from: Path | None, save_bytes: int) -> None:
        """Take charge of everything that a checkpoint holds, and load it from one when given.

        Args:
            state: what a checkpoint keeps, by name.
            resume_from: a checkpoint.
            save_bytes: space that a checkpoint and an export take together, about.

        Raises:
            UserError: when the checkpoint cannot be used, or the disk has no room for one.
        """
        self._needed = save_bytes
        if self.meter is not None:
            self.meter.take(None, self.world)  # what was counted before belongs to no step
        self._state = {"progress": self.progress, **state}
        held = parts.layout({name: part.state_dict() for name, part in self._state.items()}) is not None
        self._all_write = held
        self._group = self.world.side_group() if held else None
        if resume_from is not None:
            checkpoint.restore(resume_from, self._identity, self._state, self.world)
            self.console.line(f"resumed {resume_from} after step {self.progress.step}")
        if self.world.main:
            self.folder.cut_records(self.progress.step if resume_from is not None else -1)
            for parent in (self.folder.checkpoints, self.folder.exports):
                remove_partial(parent)
                for path in checkpoint.set_aside(parent, self.progress.step):
                    self.console.line(f"saved after step {self.progress.step}, set aside: {path}")
            self._check_room()
        self.world.barrier()

    def steps(self, export: Callable[[Path], None]) -> Iterator[int]:
        """The steps still to run; after each the run saves when that is due, and ends when a signal asks for it.

        Args:
            export: writes what diffusers loads into a folder; every rank calls it, the main one writes.

        Raises:
            UserError: when the disk takes no more, or the run was halted.
        """
        hours = self._saving.max_hours
        end = time.monotonic() + 3600 * hours if hours is not None else float("inf")
        if self.progress.step >= self.total:
            self.console.line(f"nothing is left to do: {self.progress.step} of {self.total} steps are done")
        with self.signals.deferred():
            while self.progress.step < self.total:
                yield self.progress.step + 1
                self.progress.step += 1
                due = self.signals.stop is not None or time.monotonic() >= end or self._halt is not None
                stop = self.world.agree(due)
                self._save_if_due(export, stop)
                if stop:
                    self._share_signal()
                    self._wait_for_writer()
                    self.console.line(f"{self._stop_reason()} after step {self.progress.step} of {self.total}")
                    if self._halt is not None:
                        raise UserError(self._halt)
                    return

    def halt(self, why: str) -> None:
        """End the run after this step, with what is due saved, and with ``why`` as the error; on every rank."""
        self._halt = why

    def _share_signal(self) -> None:
        """Tell every rank the signal that any of them heard, so that all end with its exit code."""
        heard = max(self.world.gather_objects(int(self.signals.stop or 0)))
        if heard:
            self.signals.stop = signal.Signals(heard)

    def _stop_reason(self) -> str:
        if self.signals.stop is not None:
            return f"stopped by {self.signals.stop.name}"
        if self._halt is not None:
            return "stopped by the guards"
        return f"stopped by train.max_hours = {self._saving.max_hours}"

    def room(self) -> tuple[int, int]:
        """Bytes that the next save takes, about, and bytes that the disk has free."""
        place = self.folder.path
        while not place.exists():
            place = place.absolute().parent
        return self._needed, shutil.disk_usage(place).free

    def _check_room(self) -> None:
        """Tell before it happens that the disk will not hold the next save.

        Raises:
            UserError: with what is needed and what is free; nothing was written.
        """
        needed, free = self.room()
        if self._saving.enabled and free < needed:
            raise UserError(
                f"{self.folder.path}: the next checkpoint and export take about {size(needed)} and the disk has "
                f"{size(free)} free; make room, lower train.ckpt.max_keep, or move train.output_dir. "
                f"What was saved before is untouched; go on with --resume auto"
            )

    def _save_if_due(self, export: Callable[[Path], None], stop: bool) -> None:
        step, saving = self.progress.step, self._saving
        asked = self.world.agree(self.signals.save)
        self.signals.save = False
        best = step == self.progress.best_step
        due = step % saving.every == 0 or step == self.total or best or asked or (stop and saving.at_exit)
        if not (saving.enabled and due):
            return
        if self.world.main or self._all_write:
            self._wait_for_writer()
            if self.world.main:
                self._check_room()
            self._writing = self._writer.submit(self._write, step, checkpoint.snapshot(self._state))
        if saving.export:
            export(self.folder.exports / f"step_{step}")
            if self.world.main:
                checkpoint.prune(self.folder.exports, saving.max_keep, self.progress.best_step)
        if not saving.beside or stop or step == self.total:
            self._wait_for_writer()
        elif self.world.main and self.room()[1] < 2 * self._needed:
            self.console.line("warning: the disk is nearly full; the checkpoint after this one may not fit")
        self.world.barrier()

    def save_complete(self, export: Callable[[Path], None]) -> None:
        """Save the last complete step where runs save at their end, unless it is saved already; every rank calls this.

        Only between steps, or where a step has changed nothing yet.
        """
        step = self.progress.step
        self._wait_for_writer()
        is_there = self.world.tell((self.folder.checkpoints / f"step_{step}").exists() if self.world.main else None)
        if step and self._saving.at_exit and not is_there:
            self._save_if_due(export, stop=True)
        self.console.line(f"stopped after step {step} of {self.total}")

    def save_unevaluated(self, step: int, metrics: dict[str, float], export: Callable[[Path], None]) -> None:
        """Save ``step``, which is complete but for its evaluation, with its metrics; every rank calls this."""
        self.progress.step, self.progress.unlogged = step, metrics
        self.save_complete(export)

    def catch_up(self, metrics: dict[str, float], export: Callable[[Path], None]) -> None:
        """Log the step that a run goes on from, now that it is evaluated, and save it again when that is due."""
        self.progress.unlogged = None
        self.log(self.progress.step, metrics)
        self._save_if_due(export, stop=False)

    def _write(self, step: int, saved: dict[str, Any]) -> None:
        path = checkpoint.write(self.folder.checkpoints, step, self._identity, saved, self.world, self._group)
        if not self.world.main:
            return
        self.console.line(f"saved {path}")
        if saved["progress"]["best_step"] == step:
            self.folder.write_best(step, saved["progress"]["best_reward"])
        checkpoint.prune(self.folder.checkpoints, self._saving.max_keep, saved["progress"]["best_step"])

    def _wait_for_writer(self) -> None:
        """Wait for the checkpoint that is being written.

        Raises:
            UserError: when it could not be.
        """
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    # ---- numbers

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to the step's ``time/<name>``."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._times[name] = self._times.get(name, 0.0) + time.perf_counter() - started

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Write a step's numbers to metrics.jsonl and the trackers, and to the person every ``log_interval`` steps."""
        times = {f"time/{name}": seconds for name, seconds in self._times.items()}
        self._times = {}
        perf = self.meter.take(times.get("time/step"), self.world) if self.meter is not None else {}
        if not self.world.main:
            return
        metrics = {**metrics, **times, **perf, **self.world.memory()}
        with open(self.folder.metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")
        for tracker in self._trackers:
            tracker.log(step, metrics)
        if step % self._log_interval == 0 or step == self.total or any(name.startswith("eval/") for name in metrics):
            self.console.metrics(step, self.total, metrics)
        self.console.progress(step, self.total)

    def rewards(self, step: int, of: Of, prompts: list[str], groups: Tensor, scores: dict[str, Tensor]) -> None:
        """Write the rewards of every prompt to rewards.jsonl; see ``RewardLog.write``."""
        if self.world.main:
            self._reward_log.write(step, of, prompts, groups, scores)

    def picture(self, step: int, name: str, path: Path) -> None:
        """Hand a picture file to the trackers."""
        for tracker in self._trackers:
            tracker.picture(step, name, path)

    def clips(self, step: int, name: str, paths: list[Path]) -> None:
        """Hand video files to the trackers; there may be none."""
        for tracker in self._trackers if paths else ():
            tracker.clips(step, name, paths)

    def samples(self, step: int, folder: Path) -> None:
        """Hand the samples of an evaluation, which ``folder`` lists, to the trackers."""
        for tracker in self._trackers:
            tracker.samples(step, listed(folder))

    def close(self) -> None:
        """Finish the checkpoint that is being written; end trackers and the bar."""
        self._writer.shutdown()
        for tracker in self._trackers:
            tracker.close()
        self.console.__exit__()
