"""A service's answers: the keys of scores, what failures and skipped rewards look like, and how to read them."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sanarl.rewards.wire import Malformed, is_number

MAIN_KEYS = {
    "cosmos_reason1": "no_score",
    "dance_grpo": "overall_reward",
    "gen_eval": "gen_eval_score",
    "geneval": "gen_eval_score",
    "ocr": "ocr_reward",
}
"""Under which key the score that counts stands in an answer, where it is not the reward's name."""
OTHER_KEYS = {
    "cosmos_reason1": ("yes_logit", "no_logit"),
    "dance_grpo": ("vq_reward", "mq_reward", "ta_reward"),
    "gen_eval": ("gen_eval_reward", "gen_eval_strict"),
}
WITH_TAGS = frozenset({"gen_eval", "geneval"})
"""Rewards that need every sample's ``tag`` and ``include``."""
TAGS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
PUBLISHED = "gen_eval_reward"
"""GenEval's published verdict, which costs a second look; ``geneval_only_strict`` leaves it out: it is 0 then."""
OTHER_TAG = -10.0
"""Stands in a tag's column of GenEval where the sample has another tag."""


def keyed(
    name: str, parts: Mapping[str, list[float]], metadata: Sequence[Mapping[str, Any]], only_strict: bool = False
) -> dict[str, list[float] | dict[str, list[float]]]:
    """Scores under the keys of an answer.

    Args:
        name: The reward.
        parts: Its scores: the one that counts under its name, the others as ``name/key``.
        metadata: Of every sample; GenEval's answer has a column for every tag.
        only_strict: GenEval's published verdict was not asked for: it is 0 then, as the peers have it.
    """
    keys: dict[str, list[float] | dict[str, list[float]]] = {}
    for part, values in parts.items():
        key = MAIN_KEYS.get(name, name) if part == name else part.removeprefix(f"{name}/")
        if name in WITH_TAGS and not key.startswith("gen_eval_"):
            key = f"gen_eval_{key}"
        keys[key] = values
    if name in WITH_TAGS:
        if only_strict:
            keys.setdefault(PUBLISHED, [0.0] * len(metadata))
        passed = keys.get(PUBLISHED, parts[name])  # whether the published rules are met
        rows = list(zip(passed, (one.get("tag") for one in metadata), strict=True))
        keys["gen_eval_group"] = {tag: [v if found == tag else OTHER_TAG for v, found in rows] for tag in TAGS}
    return keys


def result(name: str, scores: Mapping[str, Any], info: Mapping[str, Any], seconds: float, decoded: float) -> str:
    """The JSON text of scores.

    Raises:
        ValueError: for NaN and infinity, which JSON does not have.
    """
    answer = {
        "scores": scores,
        "input_info": info,
        "duration": f"{seconds:.2f}",
        "decoded_duration": f"{decoded:.2f}",
        "type": name,
    }
    return json.dumps(answer, allow_nan=False)


def failure(name: str, error: str) -> str:
    """The JSON text of a reward that could not be scored."""
    return json.dumps({"scores": None, "error": error, "type": name})


def zeros(name: str, count: int) -> str:
    """The JSON text for a reward that was skipped."""
    keys = (MAIN_KEYS.get(name, name), *OTHER_KEYS.get(name, ()))
    return result(name, {key: [0.0] * count for key in keys}, {}, 0.0, 0.0)


def scores_of(answer: Any) -> dict[str, Any]:
    """The scores of an answer.

    Raises:
        Malformed: with the service's error, or that there are none.
    """
    if not isinstance(answer, dict):
        raise Malformed(f"found a {type(answer).__name__} as the answer; accepted: an object")
    if answer.get("error") or not isinstance(answer.get("scores"), dict):
        raise Malformed(str(answer.get("error") or "the answer has no scores"))
    return answer["scores"]


def columns_of(answer: Any, count: int) -> dict[str, list[float]]:
    """Every list of numbers of an answer, by its key; texts and tables are left out.

    Raises:
        Malformed: as :func:`read_scores`.
    """
    scores = scores_of(answer)
    plain = [k for k, v in scores.items() if isinstance(v, list) and all(is_number(value) for value in v)]
    return {key: read_scores({"scores": {key: scores[key]}}, key, count) for key in plain}


def read_scores(answer: Any, key: str, count: int) -> list[float]:
    """The scores of an answer under a key, or under several added ("a+b").

    Raises:
        Malformed: with the service's error, or what is wrong with its scores.
    """
    scores = scores_of(answer)
    keys = [key] if key in scores else [part.strip() for part in key.split("+")]
    columns = []
    for name in keys:
        column = scores.get(name)
        if column is None:
            raise Malformed(f"the answer has no score {name!r}; it has {sorted(scores)}; set score_key")
        if not isinstance(column, list) or not all(is_number(value) for value in column):
            raise Malformed(f"{name!r} is no list of numbers")
        if len(column) != count:
            raise Malformed(f"{name!r} has {len(column)} scores for {count} pictures")
        if not all(math.isfinite(value) for value in column):
            raise Malformed(f"{name!r} holds NaN or infinity")
        columns.append(column)
    return [float(sum(values)) for values in zip(*columns, strict=True)]
