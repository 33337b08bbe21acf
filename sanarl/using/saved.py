"""The steps that a run has saved, and the values of one of them: those that its evaluations and exports use."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from sanarl.config import Config
from sanarl.errors import UserError
from sanarl.models.adapter import read_adapter
from sanarl.models.policy import Policy
from sanarl.runtime import checkpoint
from sanarl.runtime.folder import RunFolder
from sanarl.training import settings

ADVICE = "Choose another step with --step"


@dataclass(frozen=True)
class Saved:
    """One saved step; an export holds just the values, a checkpoint all that training needs."""

    step: int
    export: Path | None
    checkpoint: Path | None

    @property
    def place(self) -> Path:
        """What the values are read from."""
        place = self.export or self.checkpoint
        assert place is not None, "a saved step has an export or a checkpoint"
        return place


def saved_steps(folder: RunFolder) -> dict[int, Saved]:
    """Step -> what there is of it, in order."""
    exports = {_number(path): path for path in checkpoint.complete(folder.exports)}
    checkpoints = {_number(path): path for path in checkpoint.complete(folder.checkpoints)}
    return {step: Saved(step, exports.get(step), checkpoints.get(step)) for step in sorted(exports | checkpoints)}


def _number(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


def values_of(saved: Saved, config: Config, policy: Policy, identity: str) -> list[Tensor]:
    """The values of a saved step in the order of ``policy.masters``: the moving average where there is one.

    Args:
        saved: the step.
        config: of the run. policy: as it starts.
        identity: of the run's configuration, which a checkpoint must have.

    Raises:
        UserError: when they cannot be read or do not fit.
    """
    if saved.export is not None:
        by_name = _exported(saved.export, config, policy)
    else:
        assert saved.checkpoint is not None, "a saved step has an export or a checkpoint"
        by_name = _kept(saved.checkpoint, policy, identity)
    wrong = [n for n, m in zip(policy.names, policy.masters, strict=True) if by_name[n].shape != m.shape]
    if wrong:
        raise UserError(f"{saved.place}: {wrong[0]} does not have the shape that the run's model has")
    return [by_name[n].to(m.device, m.dtype) for n, m in zip(policy.names, policy.masters, strict=True)]


def _exported(folder: Path, config: Config, policy: Policy) -> dict[str, Tensor]:
    transformer = policy.model.transformer
    if config.policy.lora is not None:
        try:
            return read_adapter(folder, transformer, settings.lora_settings(config))
        except UserError as error:
            text = str(error).removeprefix("policy.lora.lora_path: ")
            raise UserError(f"{folder}: this export cannot be used: {text}. {ADVICE}") from error
    try:
        found = type(transformer).from_pretrained(folder / "transformer", dtype=transformer.dtype)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{folder}: this export cannot be used: {error}. {ADVICE}") from error
    return _complete(dict(found.named_parameters()), policy, folder)


def _kept(path: Path, policy: Policy, identity: str) -> dict[str, Tensor]:
    state = checkpoint.read(path, identity, advice=ADVICE)
    averaged = state.get("ema")
    if averaged is not None:
        if len(averaged["values"]) != len(policy.names):
            raise UserError(f"{path}: it holds {len(averaged['values'])} averaged tensors, not {len(policy.names)}")
        return dict(zip(policy.names, averaged["values"], strict=True))
    return _complete(state["policy"]["sets"]["learner"], policy, path)


def _complete(found: dict[str, Tensor], policy: Policy, place: Path) -> dict[str, Tensor]:
    missing = [name for name in policy.names if name not in found]
    if missing:
        raise UserError(f"{place}: {missing[0]} and {len(missing) - 1} more are missing: it is of another model")
    return {name: value.detach() for name, value in found.items()}
