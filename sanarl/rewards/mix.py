"""Several rewards as one number: a weighted sum that keeps its parts."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sanarl.errors import UserError
from sanarl.importing import where

# media (B, F, 3, H, W) in [0, 1], prompts, metadata -> (B,), or a dict of such tensors; one that has a keyword
# only_strict is told whether the scores are for training
Reward = Callable[..., Tensor | dict[str, Tensor]]


RESERVED = frozenset({"avg", "contrast", "diversity", "max", "mean", "min", "range", "reward"})
"""Names of statistics, under which no reward is reported: one that is called so keeps its full name."""


class RewardError(UserError):
    """A reward failed or gave something that is not a score; the page names the reward and the prompt."""

    def __init__(self, text: str, exit_code: int = 2):
        super().__init__(text)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Scores:
    """``total`` (B,) is the weighted sum; ``parts`` holds every unweighted score (B,) by name, or name/key."""

    total: Tensor
    parts: dict[str, Tensor]


class Mix:
    """A weighted sum of rewards. A weight of 0 scores and reports without counting.

    Args:
        parts: Name -> (weight, reward).
    """

    def __init__(self, parts: Mapping[str, tuple[float, Reward]]):
        self.parts = dict(parts)
        self._told = {name for name, (_, reward) in self.parts.items() if _is_told(reward)}

    @property
    def names(self) -> list[str]:
        """The rewards' names in order."""
        return list(self.parts)

    @torch.no_grad()
    def __call__(
        self,
        media: Tensor,
        prompts: list[str],
        metadata: list[dict[str, Any]],
        started: Callable[[str], None] | None = None,
        only_strict: bool = False,
    ) -> Scores:
        """Score a batch.

        A reward that returns a dict contributes its key "reward", else the key equal to its name, else its only key;
        the other keys are reported unweighted as ``name/key``.

        Args:
            media: (B, F, 3, H, W) in [0, 1]. Rewards must not change it.
            prompts: B prompts.
            metadata: B dicts.
            started: Called with a reward's name just before it runs.
            only_strict: The scores are for training: a reward that takes this keyword leaves out what it reports for
                people alone.

        Raises:
            RewardError: If a reward raised, or gave the wrong type, the wrong length, NaN or infinity.
            ValueError: If media, prompts and metadata do not belong together.
        """
        if media.ndim != 5 or not media.shape[0] == len(prompts) == len(metadata):
            shape = tuple(media.shape)
            raise ValueError(f"media {shape}, {len(prompts)} prompts and {len(metadata)} metadata do not fit together")
        total = torch.zeros(len(prompts), dtype=torch.float64)
        parts: dict[str, Tensor] = {}
        for name, (weight, reward) in self.parts.items():
            if started is not None:
                started(name)
            options = {"only_strict": only_strict} if name in self._told else {}
            scores = _named(name, _call(name, reward, media, prompts, metadata, options), prompts)
            total += weight * scores[name].double()
            parts |= scores
        return Scores(total.float(), parts)


def _is_told(reward: Reward) -> bool:
    """Whether a reward has a keyword ``only_strict``."""
    try:
        return "only_strict" in inspect.signature(reward).parameters
    except ValueError:  # built-in without a signature
        return False


def _call(
    name: str,
    reward: Reward,
    media: Tensor,
    prompts: list[str],
    metadata: list[dict[str, Any]],
    options: dict[str, bool],
) -> Any:
    try:
        return reward(media, list(prompts), list(metadata), **options)
    except UserError as error:
        raise RewardError(f"reward {name!r}: {error}") from error
    except (Exception, SystemExit) as error:  # a reward that exits must not end the run with its own code
        first = f"a batch of {len(prompts)} that starts with prompt {prompts[0]!r}" if prompts else "an empty batch"
        raise RewardError(f"reward {name!r} failed on {first}\n  {where(error)}") from error


def _named(name: str, result: Any, prompts: list[str]) -> dict[str, Tensor]:
    """{name: main score, name/key: each other score}, all (B,) float32 on the CPU."""
    if not isinstance(result, dict):
        return {name: _checked(name, result, prompts)}
    scores = {str(key): _checked(f"{name}/{key}", value, prompts) for key, value in result.items()}
    main = next((key for key in ("reward", name) if key in scores), None)
    if main is None and len(scores) == 1:
        main = next(iter(scores))
    if main is None:
        found = f"the keys {sorted(scores)}"
        raise RewardError(f"reward {name!r}: found {found}; accepted: a dict with the key 'reward' (or {name!r})")
    return {name: scores.pop(main)} | {f"{name}/{key}": value for key, value in scores.items()}


def _checked(label: str, value: Any, prompts: list[str]) -> Tensor:
    accepted = f"a tensor of shape ({len(prompts)},), one finite number a picture"
    first = f" (first prompt {prompts[0]!r})" if prompts else ""
    if not isinstance(value, Tensor):
        raise RewardError(f"reward {label!r}: found {type(value).__name__}{first}; accepted: {accepted}")
    if value.is_complex() or value.shape != (len(prompts),):
        found = f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
        raise RewardError(f"reward {label!r}: found {found}{first}; accepted: {accepted}")
    scores = value.detach().to("cpu", torch.float32)
    bad = (~torch.isfinite(scores)).nonzero().flatten().tolist()
    if bad:
        found = f"{scores[bad[0]].item()} for prompt {prompts[bad[0]]!r}"
        raise RewardError(f"reward {label!r}: found {found} ({len(bad)} of {len(prompts)} rows); accepted: {accepted}")
    return scores.clone()
