"""Which rewards a configuration asks for: in training, in evaluations and as guards."""

from collections.abc import Iterable
from typing import Any

from sanarl.config import Config
from sanarl.config.schema import GRPOConfig, Guards, RemoteReward, Validation
from sanarl.errors import UserError
from sanarl.rewards import build as build_rewards
from sanarl.rewards import resting
from sanarl.rewards.local import Scoring
from sanarl.rewards.remote import RemoteScoring
from sanarl.rewards.services import services

Rewards = tuple[tuple[str, float, tuple[tuple[str, Any], ...]], ...] | RemoteReward
"""What scores: names with weights and arguments for this process, or what a service shall score; an empty tuple for
nothing."""


def find_services(config: Config) -> None:
    """Look, before anything is loaded, whether it is known where the services of a configuration are.

    Raises:
        UserError: naming what is missing.
    """
    for which in (training_rewards(config), evaluation_rewards(config)):
        if isinstance(which, RemoteReward):
            services(which)


def training_rewards(config: Config) -> Rewards:
    """What scores rollouts; an empty tuple where there are none."""
    if not config.is_rl:
        return ()
    grpo = config.grpo
    return grpo.remote_reward if grpo.use_remote_reward else _named(grpo)


def watches(config: Config) -> bool:
    """Whether guards look at the run."""
    return config.is_rl and config.guards.enable


def guard_rewards(config: Config) -> Rewards:
    """What [guards] names; where it names nothing, what the training has."""
    if not watches(config):
        return ()
    return _named(config.guards) or training_rewards(config)


def _named(table: GRPOConfig | Validation | Guards) -> Rewards:
    """The rewards of this process that a table names."""
    weights, arguments = table.reward_function, table.reward_args
    return tuple((name, weights[name], tuple(sorted(arguments.get(name, {}).items()))) for name in sorted(weights))


def local_arguments(config: Config) -> dict[str, dict[str, Any]]:
    """What rewards of this process are built with, by name; [validation] counts before the training."""
    trained = dict(config.grpo.reward_args) if config.is_rl else {}
    return {name: dict(given) for name, given in {**trained, **config.validation.reward_args}.items()}


def evaluation_rewards(config: Config) -> Rewards:
    """What [validation] names; where it names nothing, what the training has."""
    validation = config.validation
    if not validation.enable:
        return ()
    if validation.use_remote_reward:
        remote = validation.remote_reward or (config.grpo.remote_reward if config.is_rl else None)
        if remote is None or not any(function.weight > 0 for function in remote.reward_fns):
            raise UserError("validation.use_remote_reward: true, but validation.remote_reward names no reward to score")
        return remote
    named = _named(validation)
    if named or (validation.use_remote_reward is False and config.is_rl and config.grpo.use_remote_reward):
        return named
    if validation.remote_reward is not None and config.is_rl and config.grpo.use_remote_reward:
        return validation.remote_reward
    return training_rewards(config)


def scoring(which: Rewards, rests: bool) -> Scoring | RemoteScoring:
    """What scores, with its threads; a service is asked whether it is there and takes our token.

    Reward models of this process leave the device between rollouts where ``rests`` says so.
    """
    if not isinstance(which, RemoteReward):
        weights = {name: weight for name, weight, _ in which}
        made = build_rewards(weights, {name: dict(given) for name, _, given in which if given})
        return Scoring(made, rests=rests)
    remote = RemoteScoring(which)
    try:
        remote.check()
    except BaseException:
        remote.close()
        raise
    return remote


def num_bytes(scorings: Iterable[Scoring | RemoteScoring]) -> int:
    """What reward models of this process take of the device."""
    parts = [scoring.mix.parts.values() for scoring in scorings if isinstance(scoring, Scoring)]
    return resting.num_bytes(reward for each in parts for _, reward in each)
