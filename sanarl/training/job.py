"""What both training loops do the same way: an optimiser step with its schedule, evaluation, samples, export."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sanarl.models.export import export, whole_values
from sanarl.models.policy import Policy
from sanarl.rewards.mix import RewardError
from sanarl.rollout import preview
from sanarl.rollout.evaluate import Evaluated, HeldOut, evaluate
from sanarl.rollout.guards import Watch, breaches, look
from sanarl.runtime import optim
from sanarl.runtime.checkpoint import Stateful
from sanarl.runtime.optim import Ema, OptimizerState, OptimSettings
from sanarl.runtime.session import Session
from sanarl.runtime.step import StepGuard, optimise
from sanarl.training.card import Card
from sanarl.training.engine import Engine
from sanarl.types import Term


@dataclass
class Job:
    """A policy in training and everything that acts on it, whatever the algorithm."""

    policy: Policy
    session: Session
    optim_settings: OptimSettings
    total_updates: int
    grad_clip: float
    guard: StepGuard
    ema: Ema | None
    held_out: HeldOut | None
    eval_every: int
    eval_first: bool
    card: Card
    fps: float
    engine: Engine
    watch: Watch | None = None
    before: Evaluated | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Make the optimiser."""
        self.optimizer = optim.build(self.policy.masters, self.optim_settings)

    def state(self) -> dict[str, Stateful]:
        """Everything that a checkpoint must hold besides the session's progress."""
        optimizer = OptimizerState(self.optimizer)
        state: dict[str, Stateful] = {"policy": self.policy, "optimizer": optimizer, "guard": self.guard}
        return state | ({"ema": self.ema} if self.ema is not None else {})

    def update(self, terms: Iterable[Term], share: float, step: int) -> dict[str, float]:
        """One optimiser step at the scheduled learning rate, then the moving average.

        Returns:
            The step's metrics; only ``skipped_steps`` when it was left out.
        """
        progress = self.session.progress
        lr = self.optim_settings.lr * optim.lr_factor(progress.updates, self.total_updates, self.optim_settings)
        optim.set_lr(self.optimizer, lr)
        metrics = optimise(
            terms,
            self.policy,
            self.optimizer,
            grad_clip=self.grad_clip,
            share=share,
            world=self.session.world,
            guard=self.guard,
            step=step,
        )
        self.optimizer.zero_grad(set_to_none=True)  # what comes before the next step needs their memory
        skipped = {"skipped_steps": float(self.guard.total)}
        if metrics is None:
            self.session.console.line(f"step {step}: left out, {self.guard.culprit} is not finite")
            return skipped
        progress.updates += 1
        if self.ema is not None:
            self.ema.update(progress.updates)
        return metrics | {"lr": lr} | skipped

    @property
    def shown_values(self) -> list:
        """The values that are evaluated and exported: the moving average where there is one, else the learner's."""
        return self.ema.values if self.ema is not None else list(self.policy.masters)

    def evaluate_if_due(self, step: int) -> dict[str, float]:
        """What is to be seen after ``step`` (0: before training), when that is due: held-out metrics, guards."""
        return self._held_out_if_due(step) | self._guards_if_due(step)

    def _guards_if_due(self, step: int) -> dict[str, float]:
        """``guards/<name>`` of the fixed prompts; a line for everything that is out of order."""
        watch, session = self.watch, self.session
        if watch is None or not (step % watch.every == 0 or step == session.total):
            return {}
        with session.timed("guards"):
            if watch.start is None:
                watch.start = look(self.policy, self.policy.reference(), watch.held_out, session.world)
            found = watch.start
            if step > 0:
                found = look(self.policy, self.policy.using(self.shown_values), watch.held_out, session.world)
        lines = breaches(found, watch.start, watch.limits) if step > 0 else []
        for line in lines:
            session.console.line(f"warning: guards after step {step}: {line}")
        if lines and watch.stop:
            session.halt("\n  ".join([f"guards.stop: the guards ended the run after step {step}:", *lines]))
        return found.metrics | {"guards/warnings": float(len(lines))}

    def _held_out_if_due(self, step: int) -> dict[str, float]:
        """Held-out metrics, and a sheet of their samples."""
        if self.held_out is None:
            return {}
        session = self.session
        last = step == session.total
        if not (self.eval_first if step == 0 else step % self.eval_every == 0 or last):
            return {}
        with session.timed("evaluate"), self.policy.using(self.shown_values), self.policy.gathered():
            found = evaluate(self.policy, self.held_out, session.world)
        if found.scores:
            session.rewards(step, "eval", self.held_out.prompts, found.groups, found.scores)
        if session.world.main:
            self._write_sheets(found, step, last)
        if "eval/reward" in found.metrics:
            session.progress.rewarded(found.metrics["eval/reward"], step)
        return found.metrics

    def begin(self) -> None:
        """Evaluate before the first step, or what a run that goes on left unevaluated, and log it.

        Raises:
            RewardError: when a reward fails; a step that was saved unevaluated stays so.
        """
        session, progress = self.session, self.session.progress
        if progress.unlogged is not None:
            metrics = progress.unlogged | self.evaluate_if_due(progress.step)
            session.catch_up(metrics, self.export)
        elif progress.step == 0 and (metrics := self.evaluate_if_due(0)):
            session.log(0, metrics)

    def conclude(self, step: int, metrics: dict[str, float]) -> dict[str, float]:
        """The metrics of a step with those of the evaluation after it, when one is due.

        Raises:
            RewardError: when a reward fails; the step is saved, and a run that goes on from there evaluates it first.
        """
        try:
            return metrics | self.evaluate_if_due(step)
        except RewardError:
            self.session.save_unevaluated(step, metrics, self.export)
            raise

    def _write_sheets(self, found: Evaluated, step: int, last: bool) -> None:
        folder = self.session.folder.samples
        scores = found.rewards or [None] * len(found.shown)
        rows = [(c, [(m, s)]) for c, m, s in zip(found.prompts, found.shown, scores, strict=True)]
        path = folder / f"step_{step:06d}.png"
        preview.sheet(rows, path)
        single = folder / f"step_{step:06d}"
        clips = preview.singles(found.prompts, found.shown, scores, single, self.fps)
        self.session.picture(step, "samples", path)
        self.session.clips(step, "sample_clips", clips)
        self.session.samples(step, single)
        if step == 0:
            self.before = found
        elif last and self.before is not None:
            old = zip(self.before.shown, self.before.rewards or scores, strict=True)
            pairs = [(caption, [was, now[0]]) for was, (caption, now) in zip(old, rows, strict=True)]
            preview.sheet(pairs, folder / "before_after.png")
            self.session.console.line(f"before and after, from the same noise: {folder / 'before_after.png'}")

    def export(self, folder: Path) -> None:
        """Write what diffusers loads, with a card; every rank calls this, the main one writes."""
        main = self.session.world.main
        values = whole_values(self.policy, self.shown_values, main)
        if main:
            export(self.policy, values, folder, self.card.text(self.session.progress))
            self.session.console.line(f"exported {folder}")
