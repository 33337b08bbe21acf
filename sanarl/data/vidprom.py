"""VidProM's prompts (Wang & Yang, arXiv:2403.06098; CC BY-NC 4.0), filtered: what is dropped and why is counted.

Rules, in this order, each prompt counted under the first that drops it:
1. no text, or text with a web address;
2. any of its six toxicity scores is MAX_SCORE or more, or is missing;
3. fewer than MIN_WORDS or more than MAX_WORDS words;
4. the same words as an earlier prompt, whatever the letter case, blanks and punctuation.
Of what is left, the TEST prompts of smallest hash are held out and the TRAIN prompts of next smallest are trained on,
so that neither the order of the file nor the machine decides.
"""

import csv
import hashlib
import heapq
import re
from collections import Counter
from pathlib import Path
from typing import Any

from sanarl.errors import UserError

SCORES = ("toxicity", "obscene", "identity_attack", "insult", "threat", "sexual_explicit")
MAX_SCORE = 0.2
MIN_WORDS, MAX_WORDS = 4, 80
TRAIN, TEST = 100_000, 1_000


def select(file: Path, train: int = TRAIN, test: int = TEST) -> tuple[list[str], list[str], dict[str, Any]]:
    """Read VidProM_unique.csv.

    Args:
        file: With the columns prompt and SCORES.
        train: At most so many for training.
        test: At most so many held out.

    Returns:
        Training prompts, held-out prompts, and a report with the rules and the counts.

    Raises:
        UserError: If the file cannot be read, lacks a column or leaves nothing.
    """
    counts: Counter[str] = Counter()
    seen: set[bytes] = set()
    best: list[tuple[int, str]] = []  # a heap of the smallest hashes: the largest of them on top, negated
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines)
            missing = [name for name in ("prompt", *SCORES) if name not in (reader.fieldnames or ())]
            if missing:
                raise UserError(f"{file}: found no column {', '.join(missing)}; accepted: VidProM_unique.csv")
            for row in reader:
                counts["read"] += 1
                prompt = " ".join((row["prompt"] or "").split())
                key = hashlib.sha256(re.sub(r"\W+", " ", prompt.casefold()).strip().encode()).digest()[:12]
                why = _fault(prompt, row) or ("duplicate" if key in seen else "")
                if why:
                    counts[why] += 1
                    continue
                seen.add(key)
                heapq.heappush(best, (-int.from_bytes(key), prompt))
                if len(best) > train + test:
                    heapq.heappop(best)
    except (OSError, UnicodeError, csv.Error) as error:
        raise UserError(f"{file}: cannot be read: {error}") from error
    chosen = [prompt for _, prompt in sorted(best, reverse=True)]
    if len(chosen) < 2:
        raise UserError(f"{file}: {len(chosen)} prompts are left of {counts['read']} ({dict(counts)})")
    held_out = chosen[: min(test, len(chosen) // 2)]
    trained = chosen[len(held_out) : len(held_out) + train]
    report = {
        "rules": {"max_score": MAX_SCORE, "min_words": MIN_WORDS, "max_words": MAX_WORDS, "scores": list(SCORES)},
        "counts": {**dict(sorted(counts.items())), "left": len(seen), "train": len(trained), "test": len(held_out)},
    }
    return trained, held_out, report


def _fault(prompt: str, row: dict[str, str]) -> str:
    if not prompt or re.search(r"https?://|www\.", prompt):
        return "no text"
    try:
        if not all(float(row[name]) < MAX_SCORE for name in SCORES):
            return "toxic"
    except (TypeError, ValueError):
        return "toxic"
    return "" if MIN_WORDS <= len(prompt.split()) <= MAX_WORDS else "length"
