"""Prompts that are embedded in the same blocks however few samples are drawn at a time.

Embeddings of a prompt differ by rounding with what else is in its batch. The trainer's evaluation embeds all its
prompts in one call, 64 distinct ones at a time; here a block of those is embedded when a prompt of it is first needed.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sanarl.models.base import FlowModel
from sanarl.models.policy import Policy
from sanarl.models.text import PROMPTS_AT_ONCE
from sanarl.types import Cond

BLOCKS = 2
"""Blocks that are kept: a mini-batch may lie across two."""


class Embedded:
    """A policy as a source of samples of known prompts."""

    def __init__(self, policy: Policy, prompts: list[str]):
        """Nothing is embedded yet."""
        self._policy = policy
        self.model: Any = _Remembering(policy.model, list(dict.fromkeys(prompts)))

    def guided_velocity(
        self, x_t: Tensor, sigma: Tensor, cond: Cond, empty: Cond | None, guidance_scale: float
    ) -> Tensor:
        """See ``Policy.guided_velocity``."""
        return self._policy.guided_velocity(x_t, sigma, cond, empty, guidance_scale)

    def empty_prompt(self, guidance_scale: float) -> Cond | None:
        """See ``Policy.empty_prompt``."""
        return self._policy.empty_prompt(guidance_scale)


class _Remembering:
    """A model that embeds its prompts block by block and is itself in all else."""

    def __init__(self, model: FlowModel, distinct: list[str]):
        self._model, self._distinct = model, distinct
        self._place = {prompt: place for place, prompt in enumerate(distinct)}
        self._block = lru_cache(maxsize=BLOCKS)(self._embed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def _embed(self, number: int) -> Cond:
        start = number * PROMPTS_AT_ONCE
        return self._model.encode_prompts(self._distinct[start : start + PROMPTS_AT_ONCE])

    def encode_prompts(self, prompts: list[str]) -> Cond:
        """See FlowModel; of prompts that were named at the start."""
        places = [divmod(self._place[prompt], PROMPTS_AT_ONCE) for prompt in prompts]
        return Cond.cat([self._block(block)[torch.tensor([row])] for block, row in places])
