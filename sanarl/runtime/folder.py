"""A run's folder, and finding the run to go on with."""

import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sanarl.errors import UserError
from sanarl.runtime import checkpoint


@dataclass(frozen=True)
class Identity:
    """What tells whether one run may continue another."""

    digest: str
    """Equal for configurations that may continue each other."""
    resolved: dict[str, Any]
    """The whole configuration, as tables."""
    fixed: frozenset[str]
    """Key paths that must not change."""

    def differences(self, other: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Lines ``key: was -> is`` against another run's values: those that must not be, and those that may."""
        mine = _leaves(self.resolved, "")
        lines: dict[bool, list[str]] = {True: [], False: []}
        for key in sorted(mine.keys() | other.keys()):
            was, now = (json.dumps(values.get(key), ensure_ascii=False) for values in (other, mine))
            if was != now:
                lines[key in self.fixed].append(f"{key}: {was} -> {now}")
        return lines[True], lines[False]


def _leaves(node: Any, prefix: str) -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in node.items():
        if isinstance(value, dict) and value:
            leaves |= _leaves(value, f"{prefix}{name}.")
        else:
            leaves[f"{prefix}{name}"] = value
    return leaves


@dataclass(frozen=True)
class RunFolder:
    """The files and folders of one run.

    config.toml, config.json (resolved), metrics.jsonl, rewards.jsonl, events.jsonl, best.json, log.txt, checkpoints/,
    safetensors/, samples/.
    """

    path: Path

    @property
    def checkpoints(self) -> Path:
        """``checkpoints/``, one folder a saved step."""
        return self.path / "checkpoints"

    @property
    def exports(self) -> Path:
        """``safetensors/``, one folder a saved step."""
        return self.path / "safetensors"

    @property
    def samples(self) -> Path:
        """``samples/``, pictures."""
        return self.path / "samples"

    @property
    def metrics(self) -> Path:
        """``metrics.jsonl``, one line a step."""
        return self.path / "metrics.jsonl"

    @property
    def rewards(self) -> Path:
        """``rewards.jsonl``, the rewards of every prompt, a line for every rollout and evaluation."""
        return self.path / "rewards.jsonl"

    @property
    def log(self) -> Path:
        """``log.txt``."""
        return self.path / "log.txt"

    def lock(self) -> IO[str]:
        """Take the folder for this process; the lock ends when the file is closed or the process dies.

        Raises:
            UserError: when another process has it, or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = open(self.path / ".lock", "w", encoding="utf-8")  # noqa: SIM115  # held for the whole run
        except OSError as error:
            raise UserError(f"train.output_dir: {self.path} cannot be written: {error}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise UserError(
                f"{self.path}: another process is training in this folder; wait for it, or end it"
            ) from None
        return file

    def write_best(self, step: int, reward: float | None) -> None:
        """Say in best.json which saved step has the highest held-out reward."""
        document = {"step": step, "reward": reward, "checkpoint": f"checkpoints/step_{step}"}
        (self.path / "best.json").write_text(json.dumps(document | {"export": f"safetensors/step_{step}"}) + "\n")

    def write_config(self, text: str, identity: Identity) -> None:
        """Write the configuration as given and as resolved."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / "config.toml").write_text(text, encoding="utf-8")
            document = json.dumps(
                {"identity": identity.digest, "config": identity.resolved}, indent=1, ensure_ascii=False
            )
            (self.path / "config.json").write_text(document + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"train.output_dir: {self.path} cannot be written: {error}") from error

    def saved_config(self) -> tuple[str, dict[str, Any]] | None:
        """Identity and resolved values of the configuration that the run was made with; None when unreadable."""
        try:
            document = json.loads((self.path / "config.json").read_text(encoding="utf-8"))
            return document["identity"], _leaves(document["config"], "")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def cut_records(self, step: int) -> None:
        """Drop the lines of steps after ``step`` from metrics.jsonl and rewards.jsonl: they will be made again."""
        for path in (self.metrics, self.rewards):
            if not path.is_file():
                continue
            kept = []
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    if json.loads(line)["step"] <= step:
                        kept.append(line + "\n")
                except (ValueError, KeyError, TypeError):  # the line that a crash cut short
                    continue
            beside = path.with_name(f"{path.name}.cut")
            beside.write_text("".join(kept), encoding="utf-8")
            os.replace(beside, path)


@dataclass(frozen=True)
class Found:
    """A run to go on with."""

    folder: RunFolder
    checkpoint: Path
    changes: list[str]
    """What differs in its configuration, of what may."""

    @property
    def step(self) -> int:
        """The step that the checkpoint was saved after."""
        return int(self.checkpoint.name.rpartition("_")[2])


def new(output_dir: str) -> RunFolder:
    """Make a folder of its own, named by the time.

    Raises:
        UserError: when it cannot be made.
    """
    stem = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        path = Path(output_dir) / (stem if number == 0 else f"{stem}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"train.output_dir: {path} cannot be made: {error}") from error
        return RunFolder(path)
    raise UserError(f"train.output_dir: no free name below {output_dir}")


def _with_checkpoints(output_dir: str) -> list[RunFolder]:
    """Every run below ``output_dir`` that has saved something."""
    return [RunFolder(p.parent) for p in Path(output_dir).glob("*/checkpoints") if checkpoint.complete(p)]


def others(output_dir: str) -> int:
    """How many runs below ``output_dir`` have saved something, whatever their configuration."""
    return len(_with_checkpoints(output_dir))


def find(output_dir: str, identity: Identity, resume: str) -> Found | None:
    """The run to go on with and its checkpoint.

    Args:
        output_dir: where runs are.
        identity: of this configuration.
        resume: ``never``; ``auto``: the run below ``output_dir`` with this identity that saved last;
            or the path of a run's folder or of one checkpoint.

    Returns:
        None to start anew.

    Raises:
        UserError: when ``resume`` is a path without a checkpoint, or of a run whose configuration differs in what
            must not change; the differences are listed.
    """
    if resume == "never":
        return None
    if resume == "auto":
        runs = [RunFolder(p.parent) for p in Path(output_dir).glob("*/config.json")]
        saved = [(run, run.saved_config()) for run in runs]
        unreadable = [run.path for run in _with_checkpoints(output_dir) if run.saved_config() is None]
        if unreadable:
            raise UserError(
                f"--resume auto: {unreadable[0]} has checkpoints, but its config.json cannot be read, so it is unknown "
                "whether it is this run; name the run with --resume PATH, or start anew with --resume never"
            )
        newest = [
            Found(run, path, identity.differences(config[1])[1])
            for run, config in saved
            if config is not None and config[0] == identity.digest
            for path in checkpoint.complete(run.checkpoints)[-1:]
        ]
        return max(newest, key=lambda found: (found.checkpoint.stat().st_mtime, found.folder.path.name), default=None)
    path = Path(resume)
    if path.parent.name == "checkpoints":
        run, found = RunFolder(path.parent.parent), [path] if path.is_dir() else []
    else:
        run, found = RunFolder(path), checkpoint.complete(path / "checkpoints")
    if not found:
        raise UserError(f"--resume {resume}: no checkpoint there; expected a run's folder or RUN/checkpoints/step_N")
    config = run.saved_config()
    if config is None:
        raise UserError(f"--resume {resume}: {run.path / 'config.json'} cannot be read, so its settings are unknown")
    must_not, may = identity.differences(config[1])
    if must_not:
        listed = "\n".join(f"  {line}" for line in must_not)
        raise UserError(
            f"--resume {resume}: that run was made with other settings (then -> now):\n{listed}\n"
            "  these must not change within a run; put them back, or start anew with --resume never"
        )
    return Found(run, found[-1], may)
