"""Rewards that a language model with eyes gives behind an OpenAI-compatible endpoint."""

import math
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sanarl.errors import UserError
from sanarl.rewards.frames import eight_bit, framewise, over_frames_named
from sanarl.rewards.scorers.chat import Chat, clip_part, picture_part

_UNIFIED = (
    "Look at the picture and at the caption that it was made from. Judge how well objects, their attributes and their "
    "relations follow the caption, and how clear, detailed and pleasing the picture is. Close with a line "
    "'Final Score:' and a number from 1 (worst) to 5 (best).\nText Caption: [{prompt}]"
)
_COSMOS = (
    "You inspect videos for what cannot happen: bodies that penetrate each other or float, motion without a cause, "
    "liquids that ignore obstacles, things that appear, vanish or change shape, limbs that bend the wrong way. Style, "
    "light, blur, camera effects and missing sound do not count. Start the answer with one word, Yes (there are "
    "anomalies) or No."
)
_SCORE = re.compile(r"Final Score:\s*([1-5](?:\.\d+)?)(?!\d)")


class UnifiedReward:
    """UnifiedReward v1.5 (Wang et al. 2025, https://github.com/CodeGoat24/UnifiedReward) behind an endpoint.

    Scale: the model's score from 1 to 5, divided by 5, as Cosmos-RL does: 0.2 to 1. An answer without a score is an
    error. The question is asked in our words; ``question_file`` puts the published one in its place, which equal scores
    need.

    Args:
        endpoint_url: Base of the endpoint, such as http://host:8000/v1.
        endpoint_api_key: Its token; None: ``OPENAI_API_KEY`` of the environment, or none.
        model: The name under which it serves the model.
        question_file: A text file with ``{prompt}`` where the caption goes.
        deadline_s: Seconds of one try. tries: Of one question. batch_size: Questions at a time.
        frames: Frames of a clip that are scored.
        over_frames: What their scores become: "mean" or "min".
    """

    def __init__(
        self,
        endpoint_url: str | None = None,
        endpoint_api_key: str | None = None,
        model: str = "UnifiedReward-7b-v1.5",
        question_file: str | None = None,
        deadline_s: float = 120.0,
        tries: int = 4,
        batch_size: int = 8,
        frames: int = 8,
        over_frames: str = "mean",
    ):
        self.chat = Chat("unified_reward", endpoint_url, endpoint_api_key, model, deadline_s, tries, batch_size)
        self.question = _read(question_file, _UNIFIED)
        if "{prompt}" not in self.question:
            raise UserError(f"unified_reward: {question_file} has no {{prompt}} where the caption is to stand")
        self.batch_size, self.frames, self.over = batch_size, frames, over_frames_named(over_frames)

    @torch.no_grad()
    def __call__(self, media: Tensor, prompts: list[str], metadata: list[dict[str, Any]]) -> Tensor:  # noqa: ARG002
        """(B,) float32 for media (B, F, 3, H, W) in [0, 1]; clips are scored frame by frame."""
        return framewise(media, prompts, self.frames, self.batch_size, self._score, self.over)

    def _score(self, frames: Tensor, prompts: list[str]) -> Tensor:
        questions = []
        for frame, prompt in zip(frames, prompts, strict=True):
            text = {"type": "text", "text": self.question.replace("{prompt}", prompt)}
            questions.append({"messages": [{"role": "user", "content": [picture_part(frame), text]}]})
        answers = [choice["message"]["content"] for choice in self.chat.ask(questions)]
        return torch.tensor([_graded(a, p) / 5 for a, p in zip(answers, prompts, strict=True)])


def _graded(answer: str, prompt: str) -> float:
    found = _SCORE.search(answer)
    if found is None:
        raise UserError(f"prompt {prompt!r}: the answer has no 'Final Score:' from 1 to 5: {answer[-200:]!r}")
    return float(found[1])


class CosmosReason1:
    """Cosmos-Reason1-7B-Reward (NVIDIA 2025) behind an endpoint: the probability that a clip shows nothing impossible.

    Scale: 0 to 1, P(No) / (P(Yes) + P(No)) of the answer's first token. ``yes_logit`` and ``no_logit`` are log
    probabilities, which differ from the logits by a common constant. At most 160 frames are sent, evenly spaced and
    even in number. The instructions are in our words; ``system_file`` puts the published ones in their place, which
    equal scores need.

    Args:
        endpoint_url: Base of the endpoint (vLLM), such as http://host:8000/v1.
        endpoint_api_key: Its token; None: ``OPENAI_API_KEY`` of the environment, or none.
        model: The name under which it serves the model.
        question: What is asked; None: the sample's prompt, as Cosmos-RL's service does.
        system_file: A text file with the instructions.
        deadline_s: Seconds of one try. tries: Of one question. batch_size: Questions at a time.
    """

    def __init__(
        self,
        endpoint_url: str | None = None,
        endpoint_api_key: str | None = None,
        model: str = "nvidia/Cosmos-Reason1-7B-Reward",
        question: str | None = None,
        system_file: str | None = None,
        deadline_s: float = 300.0,
        tries: int = 4,
        batch_size: int = 4,
    ):
        self.chat = Chat("cosmos_reason1", endpoint_url, endpoint_api_key, model, deadline_s, tries, batch_size)
        self.system, self.question = _read(system_file, _COSMOS), question

    @torch.no_grad()
    def __call__(self, media: Tensor, prompts: list[str], metadata: list[dict[str, Any]]) -> dict[str, Tensor]:  # noqa: ARG002
        """Score clips.

        Args:
            media: (B, F, 3, H, W) in [0, 1] with F above 1.
            prompts: B prompts.
            metadata: Not used.

        Returns:
            {"reward": (B,), "no_score": the same, "yes_logit": (B,), "no_logit": (B,)}

        Raises:
            UserError: For pictures, and when the answer's first token is not told.
        """
        if media.shape[1] < 2:
            raise UserError("found pictures; accepted: clips of two frames and more")
        kept = eight_bit(media[:, sent_frames(media.shape[1])])
        wanted = {"max_tokens": 1, "logprobs": True, "top_logprobs": 20}
        questions = []
        for clip, prompt in zip(kept, prompts, strict=True):
            content = [clip_part(clip), {"type": "text", "text": self.question or prompt}]
            messages = [{"role": "system", "content": self.system}, {"role": "user", "content": content}]
            questions.append({"messages": messages, **wanted})
        pairs = [_yes_and_no(c, p) for c, p in zip(self.chat.ask(questions), prompts, strict=True)]
        yes, no = torch.tensor(pairs).view(-1, 2).unbind(1)
        score = torch.sigmoid(no - yes)
        return {"reward": score, "no_score": score.clone(), "yes_logit": yes.clone(), "no_logit": no.clone()}


def sent_frames(count: int, most: int = 160) -> list[int]:
    """Every k-th frame of a clip, k the smallest for which at most ``most`` are kept; an odd last one is left out."""
    kept = list(range(0, count, (count - 1) // most + 1))
    return kept[: len(kept) // 2 * 2]


def _yes_and_no(choice: dict[str, Any], prompt: str) -> tuple[float, float]:
    try:
        likely = choice["logprobs"]["content"][0]["top_logprobs"]
        found = {one["token"]: float(one["logprob"]) for one in likely}
        pair = found["Yes"], found["No"]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        text = f"the answer does not tell how likely Yes and No are: {str(choice)[:200]}"
        raise UserError(f"prompt {prompt!r}: {text}; accepted: an endpoint that gives 20 top_logprobs") from error
    if not all(math.isfinite(value) for value in pair):
        raise UserError(f"prompt {prompt!r}: found the log probabilities {pair}; accepted: finite numbers")
    return pair


def _read(path: str | None, default: str) -> str:
    if path is None:
        return default
    try:
        return Path(path).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
