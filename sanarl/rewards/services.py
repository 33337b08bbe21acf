"""Which service scores which reward, by the configuration's urls or the environment's, and how scores become one."""

import os
from collections.abc import Iterator
from urllib.parse import urlsplit

import torch

from sanarl.config.schema.rewards import RemoteReward, RewardFunction
from sanarl.errors import UserError
from sanarl.rewards import answers
from sanarl.rewards.exchange import Addresses
from sanarl.rewards.mix import RESERVED

ENQUEUE, FETCH, TOKEN = "REMOTE_REWARD_ENQUEUE_URL", "REMOTE_REWARD_FETCH_URL", "REMOTE_REWARD_TOKEN"
SCHEMES = ("http://", "https://")

Labelled = tuple[str, RewardFunction]
"""A function with the name that reports use."""


def addresses() -> Addresses:
    """Where the service is, from the environment variables that Cosmos-RL reads.

    Raises:
        UserError: Naming what is not set.
    """
    found = [_listed(os.environ.get(name, "")) for name in (ENQUEUE, FETCH)]
    missing = [name for name, urls in zip((ENQUEUE, FETCH), found, strict=True) if not urls]
    if missing:
        raise UserError(
            f"rewards are to be scored by a service, but {' and '.join(missing)} {'are' if missing[1:] else 'is'} not "
            f"set in the environment. Accepted:\n"
            f"  {ENQUEUE}=http://HOST:PORT/api/reward/enqueue and {FETCH}=http://HOST:PORT/api/reward/pull\n"
            f"  (several replicas separated by commas), and {TOKEN} where the service asks for a token;\n"
            f'  or a url for every entry of remote_reward.reward_fns, such as url = "http://HOST:PORT/api/reward"'
        )
    for url in (*found[0], *found[1]):
        if not url.startswith(SCHEMES):
            raise UserError(f"found {url!r} as the address of the reward service; accepted: http:// or https://")
    return Addresses(found[0], found[1], os.environ.get(TOKEN, ""))


def addresses_of(url: str) -> Addresses:
    """The same for the ``url`` of a reward: .../api/reward, with or without the last part, or several with commas.

    Raises:
        UserError: It is no address, or holds a password: it is written into the run's folder.
    """
    bases = []
    for one in _listed(url):
        if not one.startswith(SCHEMES) or not urlsplit(one).netloc:
            raise UserError(f"found the url {one!r} of a reward service; accepted: http://HOST:PORT/api/reward")
        if "@" in urlsplit(one).netloc:
            raise UserError(f"the url of a reward service holds a name or password; accepted: {TOKEN} for its token")
        bases.append(one.rstrip("/").removesuffix("/enqueue").removesuffix("/pull"))
    if not bases:
        raise UserError(f"found the url {url!r} of a reward service; accepted: http://HOST:PORT/api/reward")
    enqueue, fetch = (tuple(f"{base}/{last}" for base in bases) for last in ("enqueue", "pull"))
    return Addresses(enqueue, fetch, os.environ.get(TOKEN, ""))


def _listed(urls: str) -> tuple[str, ...]:
    return tuple(url.strip() for url in urls.split(",") if url.strip())


def labelled(settings: RemoteReward) -> list[Labelled]:
    """The functions that count, by the name that reports use: of several with one name, with their keys."""
    functions = [function for function in settings.reward_fns if function.weight > 0]
    names = [function.name for function in functions]
    return [
        (f.name if names.count(f.name) == 1 and f.name not in RESERVED else f"{f.name}/{score_key(f)}", f)
        for f in functions
    ]


def score_key(function: RewardFunction) -> str:
    """What is read of an answer."""
    return function.score_key or answers.MAIN_KEYS.get(function.name, function.name)


def services(settings: RemoteReward, where: Addresses | None = None) -> dict[Addresses, list[Labelled]]:
    """Each service with what it scores.

    Args:
        settings: Of a table ``remote_reward``.
        where: The service of rewards without a url; None: the environment's.

    Raises:
        UserError: For a url that is none, a missing service, and ``only_strict`` where it means nothing.
    """
    faults, found = list(_faults(settings)), dict[Addresses, list[Labelled]]()
    if faults:
        raise UserError("\n".join(faults))
    for label, function in labelled(settings):
        if function.url is None and where is None:
            where = addresses()
        at = where if function.url is None else addresses_of(function.url)
        assert at is not None, "the environment has it"
        found.setdefault(at, []).append((label, function))
    return found


def _faults(settings: RemoteReward) -> Iterator[str]:
    for function in settings.reward_fns:
        if function.url is not None:
            try:
                addresses_of(function.url)
            except UserError as error:
                yield f"reward {function.name!r}: {error}"
        if function.only_strict is None:
            continue
        if function.name not in answers.WITH_TAGS:
            names = " and ".join(sorted(answers.WITH_TAGS))
            yield f"reward {function.name!r}: found only_strict; accepted: for {names} alone"
        elif function.only_strict and answers.PUBLISHED in keys_read(function):
            yield f"reward {function.name!r}: only_strict = true leaves {answers.PUBLISHED} out, which score_key reads"


def keys_read(function: RewardFunction) -> list[str]:
    """The scores of an answer that ``score_key`` adds."""
    return [part.strip() for part in score_key(function).split("+")]


def strictness(functions: list[Labelled], only_strict: bool) -> bool | None:
    """What a request says as ``geneval_only_strict``; None where nothing in it listens.

    Args:
        functions: Of one service.
        only_strict: Whether the scores are for training. A function may say otherwise, or read the verdict that would
            be left out.
    """
    asked = [
        f.only_strict if f.only_strict is not None else only_strict and answers.PUBLISHED not in keys_read(f)
        for _, f in functions
        if f.name in answers.WITH_TAGS
    ]
    return all(asked) if asked else None


def combine(settings: RemoteReward, scores: dict[str, list[float]]) -> list[float]:
    """Scores by label -> one reward a picture: each clipped, weighted, summed; the sum clipped and scaled."""
    total = torch.zeros(len(next(iter(scores.values()))), dtype=torch.float64)
    for label, function in labelled(settings):
        column = torch.tensor(scores[label], dtype=torch.float64)
        total += column.clamp(function.clip_min, function.clip_max) * function.weight
    return (total.clamp(settings.reward_clip_min, settings.reward_clip_max) * settings.scale).tolist()
