"""One run on this rank: folder, session, loop; or only its plan."""

import errno
import json
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import torch

from sanarl.config import Config, Loaded
from sanarl.errors import UserError
from sanarl.runtime import folder as folders
from sanarl.runtime import leaving, memory, publish, records
from sanarl.runtime.console import Console, Voice
from sanarl.runtime.folder import Found, Identity, RunFolder
from sanarl.runtime.session import Saving, Session
from sanarl.runtime.signals import Signals
from sanarl.runtime.track import Tracker
from sanarl.runtime.world import World, peers_named
from sanarl.training import plan, rl, settings
from sanarl.training import sft as sft_loop
from sanarl.training.build import Parts, parts
from sanarl.training.job import Job
from sanarl.training.memory import planning, shortage
from sanarl.training.trackers import trackers as start_trackers

NOT_SAVING = Saving(enabled=False, every=1, max_keep=1, export=False, at_exit=False, beside=False, max_hours=None)
MEASURED_STEPS = 2


class Outcome(NamedTuple):
    """How a run ended, and where it is."""

    exit_code: int
    """0, or 130 / 143 after a signal."""
    folder: Path | None
    """None for a dry run."""


def run(
    loaded: Loaded, dataset_module: str | None, resume: str | None, dry_run: bool = False, voice: Voice = "normal"
) -> Outcome:
    """Train as the configuration says, on this process's rank.

    Args:
        loaded: the configuration and where it came from.
        dataset_module: dotted module or .py file with ``get_dataset(config)``; None: the task's default.
        resume: ``auto``, ``never``, or a path; None: what train.resume says.
        dry_run: build everything, measure a step, print the plan and leave nothing behind.
        voice: how much is said on the terminal; log.txt has all of it.

    Raises:
        UserError: for whatever the user can mend.
    """
    config = loaded.config
    torch.use_deterministic_algorithms(config.train.deterministic)
    with Signals() as signals, leaving.noticed(), memory.explained():
        world = World.start(config.train.rank_timeout_s)
        with peers_named(world.size, config.train.rank_timeout_s):
            found = world.tell(_find(config, resume) if world.main else None)
            repository = _repository(config) if world.main else None
            with parts(config, dataset_module, world) as made, shortage.explained(made):
                if dry_run:
                    _measure(loaded, made)
                    outcome = Outcome(0, None)
                else:
                    outcome = _train(loaded, made, resume, found, signals, voice)
        world.stop()  # after an error the end of the process tells the others, which may be waiting
        if repository is not None and outcome.folder is not None:
            _upload(config, RunFolder(outcome.folder), made.total_steps, repository, voice)
    return outcome


def _repository(config: Config) -> str | None:
    """Where a finished run is uploaded to."""
    ckpt = config.train.ckpt
    if not ckpt.upload_hf:
        return None
    assert ckpt.hf_repo_name is not None, "checked with the configuration"
    return publish.repository(ckpt.hf_repo_name)


def _upload(config: Config, folder: RunFolder, total: int, name: str, voice: Voice) -> None:
    """Upload the export of the last step, if the run got there."""
    export = folder.exports / f"step_{total}"
    with Console(folder.log, "console" not in config.logging.logger, voice) as console:
        if export.is_dir():
            publish.upload(export, name, console.line)
        else:
            console.line(f"nothing was uploaded to {name}: the run is not finished")


def _train(
    loaded: Loaded, made: Parts, resume: str | None, found: Found | None, signals: Signals, voice: Voice
) -> Outcome:
    """Take the run's folder and run every step that is left in it."""
    world, output_dir = made.world, loaded.config.train.output_dir
    folder = found.folder if found else world.tell(folders.new(output_dir) if world.main else None)
    assert folder is not None, "the main rank names the folder"
    with folder.lock() if world.main else nullcontext():
        try:
            session = _open(loaded, made, folder, resume, found, signals, voice)
            try:
                job = made.job(session)
                for line in (*plan.overview(made, session.total), *made.tried_rewards(), *made.engine.warm_up()):
                    session.console.line(line)
                if world.main:
                    made.engine.write_report(folder.path / "engine.txt")
                    made.plan.write(folder.path / "memory.json")
                session.begin(job.state(), found.checkpoint if found else None, plan.save_bytes(made, job))
                if world.main and found is not None:  # only now is it sure that this run goes on
                    folder.write_config(loaded.text, _identity(loaded.config))
                return Outcome(_recorded(made, job), folder.path)
            finally:
                session.close()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG):
                raise
            raise UserError(
                f"{folder.path}: {error.strerror}; make room and go on with --resume auto: what was saved is untouched"
            ) from error


def _loop(made: Parts, job: Job) -> int:
    config = made.config
    with made.loader() as loader:
        if config.is_rl:
            setup = settings.rl_setup(config, made.model.flow_shift, made.plan.mini_batch)
            return rl.train(job, loader, made.training_rewards, setup)
        setup = settings.sft_setup(config, made.plan.mini_batch)
        return sft_loop.train(job, loader, setup, config.train.encode_ahead)


def _recorded(made: Parts, job: Job) -> int:
    """Run the loop, and note where, when and how it ended."""
    session = job.session
    if not session.world.main:
        return _loop(made, job)
    records.started(session.folder, session.world, session.progress.step, session.total)
    try:
        code = _loop(made, job)
        finished = session.progress.step >= session.total
        stop = session.signals.stop
        why = "finished" if finished else stop.name if stop is not None else "train.max_hours"
    except BaseException as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise
    finally:
        records.ended(session.folder, session.progress.step, why)
    return code


def _identity(config: Config) -> Identity:
    return Identity(config.identity(), config.model_dump(mode="json"), frozenset(config.fixed))


def _find(config: Config, resume: str | None) -> Found | None:
    train = config.train
    if resume is None:
        resume = train.resume if isinstance(train.resume, str) else "auto" if train.resume else "never"
    return folders.find(train.output_dir, _identity(config), resume)


def _open(
    loaded: Loaded,
    made: Parts,
    folder: RunFolder,
    resume: str | None,
    found: Found | None,
    signals: Signals,
    voice: Voice,
) -> Session:
    """Open what the run says things to; only the main rank writes."""
    config, world = made.config, made.world
    train, log = config.train, config.logging
    trackers: list[Tracker] = []
    silent = not world.main or "console" not in log.logger
    console = Console(folder.log if world.main else None, silent, voice)
    if world.main:
        if found is None:
            folder.write_config(loaded.text, _identity(config))
        for note in loaded.notes:
            console.line(f"{note.level}: {note.text}")
        console.line(f"run folder: {folder.path}")
        if found is not None:
            for change in found.changes:
                console.line(f"changed since that run was last started: {change}")
        elif resume == "auto" or (resume is None and train.resume):
            known = folders.others(train.output_dir)
            console.line(
                f"nothing to resume below {train.output_dir} ({known} run(s) of other settings there); starting anew"
            )
        trackers = start_trackers(config, folder, console, found.step if found is not None else 0)
    return Session(
        folder=folder,
        world=world,
        identity=config.identity(),
        saving=settings.saving(config, len(made.dataset)),
        console=console,
        trackers=trackers,
        log_interval=log.log_interval,
        total=made.total_steps,
        signals=signals,
    )


def measured(made: Parts, steps: int) -> tuple[list[dict[str, float]], int]:
    """Take ``steps`` steps without saving anything: their metrics on the main rank, and the bytes of a save."""
    with tempfile.TemporaryDirectory() as place:
        session = Session(
            folder=RunFolder(Path(place)),
            world=made.world,
            identity=made.config.identity(),
            saving=NOT_SAVING,
            console=Console(None, quiet=True),
            trackers=[],
            log_interval=1,
            total=min(steps, made.total_steps),
        )
        job = made.job(session)
        job.held_out = job.watch = None
        save_bytes = plan.save_bytes(made, job)
        session.begin(job.state(), None, save_bytes)
        _loop(made, job)
        metrics = session.folder.metrics
        lines = metrics.read_text(encoding="utf-8").splitlines() if made.world.main else []
        session.close()
    return [json.loads(line) for line in lines], save_bytes


def _measure(loaded: Loaded, made: Parts) -> None:
    """Say what the run would be, try the rewards, take a step or two without saving, and say what all would take."""
    console = Console(None, quiet=not made.world.main)
    notes = [f"{note.level}: {note.text}" for note in loaded.notes]
    made.plan = planning.predicted(made.plan, made.config, made.footprint, memory.shared_budget(made.world))
    for line in [*notes, *plan.overview(made, made.total_steps), *plan.memory(made)]:
        console.line(line)
    tried = [*made.tried_rewards(), *made.engine.warm_up()]
    lines, save_bytes = measured(made, MEASURED_STEPS)
    seconds = lines[-1]["time/step"] if lines else 0.0
    for line in [*tried, *plan.costs(made, seconds, save_bytes), *plan.measured_memory(made, lines)]:
        console.line(line)
