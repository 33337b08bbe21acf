"""Scores of a subject on prompts, base against trained from the same noise; goes on where it was stopped."""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sanarl import __version__
from sanarl.errors import UserError
from sanarl.rewards.mix import Mix
from sanarl.using.drawing import Drawing, drawn
from sanarl.using.subject import Subject

Scored = dict[str, dict[int, dict[str, float]]]
"""Arm (``base``, ``trained``) -> number of the sample -> reward -> score."""


@dataclass(frozen=True)
class Plan:
    """All that a score depends on; equal plans have equal scores, so one may go on with what another left."""

    subject: str
    adapter: str
    arms: tuple[str, ...]
    prompts: str
    num_prompts: int
    prompts_sha256: str
    num_samples: int
    rewards: dict[str, dict[str, Any]]
    """Name -> the arguments that it is built with."""
    seed: int
    sampler: dict[str, Any]
    config: str
    """Hash of the configuration that the subject is drawn by."""
    sanarl: str

    @property
    def digest(self) -> str:
        """A short name of the plan."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:10]


def plan(subject: Subject, drawing: Drawing, rewards: dict[str, dict[str, Any]], base: bool) -> Plan:
    """What will be scored.

    Args:
        subject: whose samples. drawing: which samples.
        rewards: name -> arguments.
        base: score the base's samples too, where there are trained values.
    """
    arms = (("base", "trained") if base else ("trained",)) if "trained" in subject.values else ("base",)
    texts = json.dumps([drawing.prompts.texts, drawing.prompts.metadata], sort_keys=True)
    return Plan(
        subject=str(subject.run.path.resolve()) if subject.run is not None else subject.model,
        adapter=_fingerprint(subject),
        arms=arms,
        prompts=drawing.prompts.name,
        num_prompts=len(drawing.prompts),
        prompts_sha256=hashlib.sha256(texts.encode()).hexdigest(),
        num_samples=drawing.num_samples,
        rewards=rewards,
        seed=drawing.seed,
        sampler=asdict(drawing.sampler),
        config=subject.config.identity(),
        sanarl=__version__,
    )


def _fingerprint(subject: Subject) -> str:
    """Hash of the values, so that a step that was trained again counts as another."""
    if "trained" not in subject.values:
        return "none"
    digest = hashlib.sha256()
    for value in subject.values["trained"]:
        digest.update(value.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


class Progress(AbstractContextManager["Progress"]):
    """``progress.jsonl``: the plan, then a line for every mini-batch that is scored. A line is whole or not there.

    The folder is this process's until the context ends.
    """

    def __init__(self, folder: Path, plan: Plan):
        """Take up what was left in ``folder``.

        Raises:
            UserError: when it holds the scores of another plan, another process scores there, or it cannot be written.
        """
        self.path, self.scored = folder / "progress.jsonl", {arm: {} for arm in plan.arms}
        document = json.loads(json.dumps(asdict(plan)))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = open(folder / ".lock", "w", encoding="utf-8")  # noqa: SIM115  # closed by the context
        except OSError as error:
            raise UserError(f"--out {folder}: cannot be written: {error.strerror or error}") from error
        try:
            self._take_up(folder, document)
        except BaseException:
            self._lock.close()
            raise

    def _take_up(self, folder: Path, document: dict[str, Any]) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lines = self._lines()
            if lines and lines[0] != document:
                changed = sorted(key for key in document if lines[0].get(key) != document[key])
                raise UserError(
                    f"{folder}: holds scores of something else ({', '.join(changed)} differ); choose another --out"
                )
            self._rewrite([document, *lines[1:]])
        except BlockingIOError:
            raise UserError(f"{folder}: another evaluation is at work in this folder; wait for it, or end it") from None
        except OSError as error:
            raise UserError(f"--out {folder}: cannot be written: {error.strerror or error}") from error
        for line in lines[1:]:
            self.scored[line["arm"]] |= dict(zip(line["rows"], line["scores"], strict=True))

    def __exit__(self, *_: object) -> None:
        """Let others score in this folder."""
        self._lock.close()

    def _lines(self) -> list[dict[str, Any]]:
        """What can be read; the end that a crash cut short cannot, and what follows a line that is none."""
        found: list[dict[str, Any]] = []
        if self.path.is_file():
            for text in self.path.read_text(encoding="utf-8", errors="replace").split("\n"):
                try:
                    line = json.loads(text)
                except ValueError:
                    break
                if not isinstance(line, dict) or (found and not self._is_scored(line)):
                    break
                found.append(line)
        return found

    def _is_scored(self, line: dict[str, Any]) -> bool:
        """Whether a line is a mini-batch with its scores."""
        rows, scores = line.get("rows"), line.get("scores")
        lists = isinstance(rows, list) and isinstance(scores, list) and len(rows) == len(scores)
        return lists and line.get("arm") in self.scored and all(isinstance(score, dict) for score in scores)

    def _rewrite(self, documents: list[dict[str, Any]]) -> None:
        partial = self.path.with_suffix(".partial")
        partial.write_text("".join(json.dumps(one) + "\n" for one in documents), encoding="utf-8")
        os.replace(partial, self.path)

    def add(self, arm: str, rows: list[int], scores: list[dict[str, float]]) -> None:
        """Note the scores of a mini-batch, on the disk before this returns."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"arm": arm, "rows": rows, "scores": scores}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.scored[arm] |= dict(zip(rows, scores, strict=True))

    def left(self, arm: str, drawing: Drawing) -> list[list[int]]:
        """The mini-batches that are not scored yet."""
        return [batch for batch in drawing.batches() if not all(row in self.scored[arm] for row in batch)]


def score(subject: Subject, drawing: Drawing, mix: Mix, progress: Progress, say: Callable[[str], None]) -> Scored:
    """Draw and score what is left.

    Args:
        subject: whose samples. drawing: which samples.
        mix: the rewards.
        progress: what is there, and takes what is added.
        say: told how far it is.

    Raises:
        RewardError: when a reward fails; what was scored before stays.
        UserError: when the disk takes no more.
    """
    total = len(drawing) * len(progress.scored)
    done = said = sum(map(len, progress.scored.values()))
    if done:
        say(f"{done} of {total} samples were scored before")
    try:
        for arm in progress.scored:
            for rows, scores in _scores(subject, arm, drawing, mix, progress.left(arm, drawing)):
                progress.add(arm, rows, scores)
                done += len(rows)
                if done == total or 10 * done // total > 10 * said // total:
                    said = done
                    say(f"scored {done} of {total} samples")
    except OSError as error:
        raise UserError(f"{progress.path}: {error.strerror or error}; go on with the same command") from error
    return progress.scored


def _scores(
    subject: Subject, arm: str, drawing: Drawing, mix: Mix, batches: list[list[int]]
) -> Iterator[tuple[list[int], list[dict[str, float]]]]:
    for rows, media in drawn(subject, arm, drawing, batches):
        metadata = [drawing.prompts.metadata[row // drawing.num_samples] for row in rows]
        parts = mix(media, [drawing.prompt(row) for row in rows], metadata).parts
        yield rows, [{name: float(values[place]) for name, values in parts.items()} for place in range(len(rows))]
