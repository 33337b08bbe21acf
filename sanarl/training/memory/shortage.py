"""What to do when memory ran out: the page that ends a run then."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from sanarl.config import Config
from sanarl.errors import UserError, first_line
from sanarl.models.checkpointing import Checkpointing
from sanarl.rewards.mix import RewardError
from sanarl.runtime import memory
from sanarl.runtime.session import size
from sanarl.training import settings
from sanarl.training.build import Parts
from sanarl.training.memory import planning
from sanarl.training.memory.footprints import Footprint
from sanarl.training.memory.prediction import Prediction

SETTINGS = 3
"""Settings that are named."""
SMALLER = "smaller samples (policy.diffusers.inference_size, inference_frames) take less still"


class Remedy(NamedTuple):
    """A setting that takes less memory, and what the run becomes with it."""

    setting: str
    config: Config
    checkpointing: Checkpointing
    mini_batch: int
    prediction: Prediction


@contextmanager
def explained(made: Parts) -> Iterator[None]:
    """Turn a GPU's shortage of memory into a page about this run.

    Raises:
        UserError: with the plan in force, the memory there is, and the settings that would help most.
    """
    try:
        yield
    except (torch.OutOfMemoryError, RewardError) as error:
        cause = error if isinstance(error, torch.OutOfMemoryError) else error.__cause__
        if not isinstance(cause, torch.OutOfMemoryError):
            raise
        raise UserError("\n".join(page(made, error, cause))) from error


def page(made: Parts, error: Exception, cause: torch.OutOfMemoryError) -> list[str]:
    """The lines for a person."""
    first = (str(cause) or type(cause).__name__).splitlines()[0]
    lines = [f"the memory of the GPU is not enough: {first}"]
    if error is not cause:
        lines.append(f"  {str(error).splitlines()[0]}")
    plan = made.plan
    advice: list[str]
    try:
        plan = planning.predicted(plan, made.config, made.footprint, memory.budget(made.world.device))
        assert plan.prediction is not None, "just made"
        advice = helping(made.footprint, made.config, plan.prediction)
    except Exception as failed:  # for some models a prediction embeds a prompt; the cause must not be lost over it
        advice = [f"  {memory.ADVICE}", f"  (a prediction failed: {first_line(failed)})"]
    lines.append(f"  {plan.line()}")
    if plan.prediction is not None:
        lines += [f"  {line}" for line in plan.prediction.lines()]
    lines += [f"  {there(made.world.device)}", *advice]
    return [*lines, "  a run that has saved goes on with --resume auto; these settings may change in between"]


def there(device: torch.device) -> str:
    """What the device has and what this process holds of it."""
    if device.type != "cuda":
        free = memory.free_memory()
        return "in this machine: " + ("unknown" if free is None else f"{size(free)} free")
    free, total = torch.cuda.mem_get_info(device)
    held, tensors = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    budget = memory.budget(device) or total
    capped = f", of which this process may have {size(budget)}" if budget < total else ""
    return (
        f"on the card: {size(total)} in all, {size(free)} free{capped}; torch holds {size(held)}, "
        f"{size(tensors)} of it in tensors"
    )


def helping(footprint: Footprint, config: Config, before: Prediction) -> list[str]:
    """The settings that take most off the prediction, each on top of those above it."""
    now, lines = Remedy("", config, before.checkpointing, before.mini_batch, before), []
    for _ in range(SETTINGS):
        found = list(remedies(footprint, now))
        best = min(found, key=lambda remedy: remedy.prediction.peak, default=None)
        if best is None or best.prediction.peak >= now.prediction.peak:
            break
        lines.append(f"    {best.setting}  saves {size(now.prediction.peak - best.prediction.peak)}")
        now = best
    if not lines:
        return [f"  no setting takes less than this; {SMALLER}"]
    said = "  what would help most here, each on top of the one above (predicted):"
    return [said, *lines, f"  the predicted peak is {size(now.prediction.peak)} then; {SMALLER}"]


def remedies(footprint: Footprint, now: Remedy) -> Iterator[Remedy]:
    """Every setting that may take less memory than what is set now, with its prediction."""
    config, how, mini_batch = now.config, now.checkpointing, now.mini_batch

    def with_value(key: str, value: Any) -> Remedy:
        changed = replaced(config, key.split("."), value)
        prediction = footprint.predict(changed, how, mini_batch)
        return Remedy(f"{key} = {json.dumps(value)}", changed, how, mini_batch, prediction)

    if how != "full":
        prediction = footprint.predict(config, "full", mini_batch)
        yield Remedy("policy.model_gradient_checkpointing = true", config, "full", mini_batch, prediction)
    if mini_batch > 1:
        fewer = mini_batch // 2
        prediction = footprint.predict(config, how, fewer)
        yield Remedy(f"train.train_policy.mini_batch = {fewer}", config, how, fewer, prediction)
    for key, value in _settings(footprint, config):
        yield with_value(key, value)


def _settings(footprint: Footprint, config: Config) -> Iterator[tuple[str, Any]]:
    """Keys with a value that takes less than theirs."""
    diffusers, validation = config.policy.diffusers, config.validation
    if not diffusers.offload:
        yield "policy.diffusers.offload", True
    if diffusers.vae_tiles is not True:
        yield "policy.diffusers.vae_tiles", True
    if config.is_rl and (at_once := settings.at_once(config)) > 1:
        yield "rollout.n_generation_mini_batch", at_once // 2
    if config.is_rl and diffusers.dtype == "float32" and config.rollout.engine.decode_dtype is None:
        yield "rollout.engine.decode_dtype", "bfloat16"
    if not config.is_rl and config.data.cache is None:
        yield "data.cache", "cache"
    if validation.enable and (batch := settings.evaluation_sampler(config, 1.0).mini_batch) > 1:
        yield "validation.batch_size", batch // 2
    if config.policy.lora is None and config.train.optm_impl == "foreach":
        yield "train.optm_impl", "fused"
    if config.policy.lora is None and footprint.world_size > 1:
        if config.policy.parallelism.dp_shard_size < footprint.world_size:
            yield "policy.parallelism.dp_shard_size", footprint.world_size
        elif not config.train.fsdp_offload:
            yield "train.fsdp_offload", True


def replaced(table: Any, path: list[str], value: Any) -> Any:
    """A table of the configuration with one value replaced; nothing is checked."""
    name, *rest = path
    return table.model_copy(update={name: replaced(getattr(table, name), rest, value) if rest else value})
