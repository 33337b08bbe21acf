"""Embedding prompts: each distinct one once, in blocks that do not depend on what else is asked for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sanarl.errors import UserError
from sanarl.models.base import Use
from sanarl.types import Cond

PROMPTS_AT_ONCE = 64
CLIP_TOKENS = 77
T5_TOKENS = 512
"""The most that SD3.5 and FLUX.1 were trained with."""


def each_once(prompts: list[str], encode: Callable[[list[str]], Cond]) -> Cond:
    """Embed every distinct prompt once and repeat it for the rows that have it: B strings -> Cond of B rows.

    Args:
        prompts: B of them; B may be 0.
        encode: embeds up to ``PROMPTS_AT_ONCE`` prompts, of which none is empty or all are.
    """
    distinct = list(dict.fromkeys(prompts)) or [""]
    parts = [[p for p in distinct if p], [p for p in distinct if not p]]
    blocks = [part[i : i + PROMPTS_AT_ONCE] for part in parts for i in range(0, len(part), PROMPTS_AT_ONCE)]
    cond = Cond.cat([encode(block) for block in blocks])
    place = {prompt: row for row, prompt in enumerate(p for block in blocks for p in block)}
    rows = cond[torch.tensor([place[prompt] for prompt in prompts], dtype=torch.int64)]
    return replace(rows, texts=list(prompts))


def token_ids(tokenizer: Any, prompts: list[str], length: int, device: torch.device) -> Tensor:
    """(N, length): padded, and longer ones cut."""
    told = tokenizer(prompts, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
    return told.input_ids.to(device)


def check_length(max_prompt_length: int) -> None:
    """That a T5 of these families has seen prompts so long.

    Raises:
        UserError: when it has not.
    """
    if max_prompt_length > T5_TOKENS:
        raise UserError(
            f"policy.diffusers.max_prompt_length: found {max_prompt_length}; accepted with this model: "
            f"at most {T5_TOKENS}"
        )


def refuse_sana_keys(use: Use, kind: str) -> None:
    """That nothing is asked for that only SANA has.

    Raises:
        UserError: naming all of it.
    """
    faults, diffusers = [], "policy.diffusers"
    if use.complex_human_instruction:
        faults.append(f"{diffusers}.complex_human_instruction: found true, but a {kind} has none; accepted: false")
    if use.motion_score is not None:
        faults.append(f"{diffusers}.motion_score: found {use.motion_score}, but a {kind} makes pictures; leave it out")
    if faults:
        raise UserError("\n".join(faults))
