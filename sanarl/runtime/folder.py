"""A run's folder, and finding the run to go on with."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from sanarl.errors import UserError
from sanarl.runtime import checkpoint


@dataclass(frozen=True)
class RunFolder:
    """config.toml as given, config.json as resolved, metrics.jsonl, log.txt, checkpoints/, safetensors/, samples/."""

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
    def log(self) -> Path:
        """``log.txt``."""
        return self.path / "log.txt"

    def write_config(self, text: str, resolved: dict, identity: str) -> None:
        """Write the configuration as given and as resolved."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / "config.toml").write_text(text, encoding="utf-8")
            document = json.dumps({"identity": identity, "config": resolved}, indent=1, ensure_ascii=False)
            (self.path / "config.json").write_text(document + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"train.output_dir: {self.path} cannot be written: {error}") from error

    def identity(self) -> str | None:
        """Identity of the configuration that the run was made with; None when it cannot be told."""
        try:
            return json.loads((self.path / "config.json").read_text(encoding="utf-8"))["identity"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def cut_metrics(self, step: int) -> None:
        """Drop the lines of steps after ``step``: they will be made again."""
        if not self.metrics.is_file():
            return
        kept = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
            except (ValueError, KeyError, TypeError):  # the line that a crash cut short
                continue
        self.metrics.write_text("".join(kept), encoding="utf-8")


def new(output_dir: str) -> RunFolder:
    """A folder that does not exist yet, named by the time."""
    stem = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        path = Path(output_dir) / (stem if number == 0 else f"{stem}-{number}")
        if not path.exists():
            return RunFolder(path)
    raise UserError(f"train.output_dir: no free name below {output_dir}")


def find(output_dir: str, identity: str, resume: str) -> tuple[RunFolder, Path] | None:
    """The run to go on with and its checkpoint.

    Args:
        output_dir: where runs are.
        identity: of this configuration.
        resume: ``never``; ``auto``: the run below ``output_dir`` with this identity that saved last;
            or the path of a run's folder or of one checkpoint.

    Returns:
        None to start anew.

    Raises:
        UserError: when ``resume`` is a path without a checkpoint, or of a run with another configuration.
    """
    if resume == "never":
        return None
    if resume == "auto":
        runs = [RunFolder(p.parent) for p in Path(output_dir).glob("*/config.json")]
        runs = [run for run in runs if run.identity() == identity]
        newest = [(run, path) for run in runs for path in checkpoint.complete(run.checkpoints)[-1:]]
        return max(newest, key=lambda found: (found[1].stat().st_mtime, found[0].path.name), default=None)
    path = Path(resume)
    if path.parent.name == "checkpoints":
        run, found = RunFolder(path.parent.parent), [path] if path.is_dir() else []
    else:
        run, found = RunFolder(path), checkpoint.complete(path / "checkpoints")
    if not found:
        raise UserError(f"--resume {resume}: no checkpoint there; expected a run's folder or RUN/checkpoints/step_N")
    if run.identity() not in (identity, None):
        raise UserError(
            f"--resume {resume}: that run was made with another configuration ({run.path / 'config.json'}). "
            "What may change is listed in docs/config.md; start anew with --resume never"
        )
    return run, found[-1]
