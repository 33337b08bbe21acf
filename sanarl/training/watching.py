"""From [guards] to what is watched."""

from pathlib import Path

from sanarl.config import Config
from sanarl.data.module import Items
from sanarl.data.prompts import read_metadata, read_prompts
from sanarl.errors import UserError
from sanarl.models.base import FlowModel
from sanarl.rewards.local import Scoring
from sanarl.rewards.remote import RemoteScoring
from sanarl.rollout.evaluate import HeldOut
from sanarl.rollout.guards import Limits, Watch
from sanarl.training import settings


def prompts(config: Config, dataset: Items) -> list[dict]:
    """The fixed prompts: those of guards.prompts, or of the training set, evenly spread.

    Raises:
        UserError: when the file cannot be read.
    """
    guards = config.guards
    if guards.prompts is None:
        count = min(guards.num_prompts, len(dataset))
        return [dataset[number * len(dataset) // count] for number in range(count)]
    file = Path(guards.prompts).expanduser()
    try:
        return (read_metadata if file.suffix == ".jsonl" else read_prompts)(file)[: guards.num_prompts]
    except UserError as error:
        raise UserError(f"guards.prompts: {error}") from error


def watch(config: Config, chosen: list[dict], model: FlowModel, scoring: Scoring | RemoteScoring | None) -> Watch:
    """What [guards] asks for."""
    guards = config.guards
    held_out = HeldOut(
        prompts=[item["prompt"] for item in chosen],
        metadata=[item["metadata"] for item in chosen],
        num_samples=guards.n_generation,
        sampler=settings.evaluation_sampler(config, model.flow_shift),
        key=(config.train.seed, "guards"),
        scoring=scoring,
        deadline_s=settings.SCORING_DEADLINE_S,
    )
    return Watch(held_out, guards.freq, Limits(guards.min_diversity, guards.max_change, guards.max_drift), guards.stop)
