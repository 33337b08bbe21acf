"""Scoring in threads: the same scores whatever the order and the split, and no way to hang."""

import itertools
import threading
import time

import pytest
import torch

from sanarl.rewards.local import Scoring
from sanarl.rewards.mix import Mix, RewardError

N = 12
MEDIA = torch.rand(N, 1, 3, 4, 4, generator=torch.Generator().manual_seed(0))
PROMPTS = [f"prompt {i}" for i in range(N)]
METADATA = [{"number": i} for i in range(N)]


def reward(media, prompts, metadata):
    number = torch.tensor([float(p.split()[1]) for p in prompts])
    assert number.tolist() == [m["number"] for m in metadata]
    return {"reward": media.flatten(1).mean(1) + number, "number": number}


def submit(scoring, rows):
    scoring.submit(rows, MEDIA[rows], [PROMPTS[i] for i in rows], [METADATA[i] for i in rows])


@pytest.mark.parametrize("workers", [1, 3])
def test_order_of_submission_and_split_change_nothing(workers):
    mix = Mix({"mine": (0.7, reward)})
    whole = mix(MEDIA, PROMPTS, METADATA)
    splits = [[list(range(N))], [[i] for i in reversed(range(N))], [[3, 1, 11], [0, 2], [10, 4, 6, 8], [5, 7, 9]]]
    with Scoring(mix, workers) as scoring:
        for split in splits:
            for batches in itertools.islice(itertools.permutations(split), 6):
                for rows in batches:
                    submit(scoring, rows)
                scores = scoring.collect(30)
                assert torch.equal(scores.total, whole.total)
                expected = whole.parts | {"avg": whole.total}
                assert scores.parts.keys() == expected.keys()
                assert all(torch.equal(scores.parts[k], expected[k]) for k in expected)


def test_a_reward_hears_whether_it_is_for_training():
    # Reference: what was submitted for; a reward without that keyword is called as ever.
    def told(media, _prompts, _metadata, only_strict=None):
        both = {"reward": media.flatten(1).mean(1)}
        return both if only_strict else both | {"partial": both["reward"]}

    for only_strict, parts in ((True, ["told", "mine", "mine/number", "avg"]), (False, None)):
        with Scoring(Mix({"told": (1.0, told), "mine": (1.0, reward)})) as scoring:
            scoring.submit([0], MEDIA[:1], PROMPTS[:1], METADATA[:1], only_strict)
            found = list(scoring.collect(30).parts)
        assert found == (parts or ["told", "told/partial", "mine", "mine/number", "avg"])


def test_submit_returns_while_a_reward_works():
    gate = threading.Event()

    def slow(media, _prompts, _metadata):
        assert gate.wait(30)
        return media.flatten(1).mean(1)

    with Scoring(Mix({"slow": (1.0, slow)})) as scoring:
        submit(scoring, [0])
        submit(scoring, [1])  # reached although the first is at work
        gate.set()
        assert len(scoring.collect(30).total) == 2


def test_a_failure_is_raised_at_collect_and_the_next_round_works():
    def moody(media, prompts, _metadata):
        if "prompt 5" in prompts:
            raise RuntimeError("no fives")
        return media.flatten(1).mean(1)

    with Scoring(Mix({"moody": (1.0, moody)})) as scoring:
        for _ in range(2):
            for rows in ([0, 1], [4, 5], [6]):
                submit(scoring, rows)
            with pytest.raises(RewardError, match=r"reward 'moody' failed .* 'prompt 4'[\s\S]*no fives"):
                scoring.collect(30)
            submit(scoring, [0])
            assert len(scoring.collect(30).total) == 1


def test_a_reward_past_its_deadline_is_named_and_holds_nobody():
    gate = threading.Event()

    def hangs(media, _prompts, _metadata):
        gate.wait(60)
        return media.flatten(1).mean(1)

    scoring = Scoring(Mix({"mine": (1.0, reward), "hangs": (1.0, hangs)}))
    submit(scoring, [0, 1])
    submit(scoring, [2])
    with pytest.raises(RewardError, match=r"reward 'hangs' is still at work on prompt 'prompt 0': 3 pictures were not"):
        scoring.collect(0.2)
    submit(scoring, [3])
    with pytest.raises(RewardError, match=r"1 pictures were not scored within 0\.1 s"):
        scoring.collect(0.1)
    start = time.monotonic()
    scoring.close()
    assert time.monotonic() - start < 30  # the reward would hang for 60
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("reward-"))
    gate.set()


def test_close_joins_its_threads_and_refuses_more():
    scoring = Scoring(Mix({"mine": (1.0, reward)}), workers=2)
    submit(scoring, [0])
    scoring.close()
    scoring.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("reward-") and t in scoring._threads]
    with pytest.raises(ValueError, match="after close"):
        submit(scoring, [1])


def test_rows_twice_and_wrong_lengths_are_refused():
    with Scoring(Mix({"mine": (1.0, reward)})) as scoring:
        submit(scoring, [0, 1])
        with pytest.raises(ValueError, match="submitted twice"):
            submit(scoring, [1])
        with pytest.raises(ValueError, match="submitted twice"):
            submit(scoring, [2, 2])
        with pytest.raises(ValueError, match="lengths differ"):
            scoring.submit([2], MEDIA[:2], PROMPTS[:1], METADATA[:1])


def test_nothing_submitted_gives_no_rows():
    with Scoring(Mix({"mine": (1.0, reward)})) as scoring:
        submit(scoring, [])
        scores = scoring.collect(1)
        assert scores.total.shape == scores.parts["mine"].shape == (0,)


def test_scores_of_some_batches_only_are_an_error():
    def varying(media, prompts, _metadata):
        scores = {"reward": media.flatten(1).mean(1)}
        return scores | ({"extra": scores["reward"]} if "prompt 0" in prompts else {})

    with Scoring(Mix({"varying": (1.0, varying)})) as scoring:
        submit(scoring, [0])
        submit(scoring, [1])
        with pytest.raises(RewardError, match=r"'varying/extra'.* some batches only"):
            scoring.collect(30)
