"""The client against a service as Cosmos-RL's behaves, and against everything that can go wrong there."""

import importlib.util
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from sanarl.config.schema import RemoteReward, RewardFunction
from sanarl.errors import UserError
from sanarl.rewards import exchange, remote, services
from sanarl.rewards.exchange import Addresses
from sanarl.rewards.mix import RewardError

HERE = Path(__file__).parent
RED = (RewardFunction(name="red"),)


@pytest.fixture(scope="module")
def peers():
    spec = importlib.util.spec_from_file_location("reward_peer", HERE / "peer.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def make_peer(peers):
    made = []

    def make(*args, **options):
        made.append(peers.Peer(*args, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def make_scoring():
    """A function that gives a client of peers; ``said`` collects its lines."""
    made = []

    def make(*where, functions=RED, token="our token", **settings):
        urls = [one if isinstance(one, str) else one.url for one in where]
        addresses = Addresses(tuple(f"{u}/enqueue" for u in urls), tuple(f"{u}/pull" for u in urls), token)
        options = {"deadline_s": 5.0, "patience_s": 5.0, "batch_size": 2, **settings}
        scoring = remote.RemoteScoring(RemoteReward(reward_fns=functions, **options), addresses)
        scoring.said = []
        scoring.say = scoring.said.append
        made.append(scoring)
        return scoring

    yield make
    for one in made:
        one.close()


def media(count=5, frames=1, size=8):
    return torch.rand(count, frames, 3, size, size, generator=torch.Generator().manual_seed(0))


def send(scoring, pictures, rows=None, metadata=None):
    rows = list(range(len(pictures))) if rows is None else rows
    scoring.submit(rows, pictures, [f"prompt {row}" for row in rows], metadata or [{} for _ in rows])


def red(pictures):
    """The mean of the red channel after rounding to 8 bits."""
    return (pictures[:, :, 0].mul(255).round().double().flatten(1).mean(1) / 255).float()


def test_pictures_become_bytes(make_peer, make_scoring):
    # Reference: rounding to the nearest of 256 levels, 0 and 1 at the ends; values outside are cut off.
    peer = make_peer()
    scoring = make_scoring(peer)
    pictures = torch.tensor([-0.1, 0.0, 0.4999 / 255, 0.5001 / 255, 1.0, 1.1]).view(1, 1, 1, 1, 6).repeat(1, 1, 3, 2, 1)
    pictures[:, :, 1] = 0.2
    send(scoring, pictures)
    scoring.collect(5)
    head, array = peer.requests[0]
    assert array.dtype == np.uint8
    assert array.shape == (1, 2, 6, 3)
    assert array[0, 1, :, 0].tolist() == [0, 0, 0, 1, 255, 255]
    assert array[0, :, :, 1].tolist() == [[51] * 6] * 2
    assert head == {"prompts": ["prompt 0"], "reward_fn": {"red": 1.0}, "media_type": "image"}
    assert peer.headers[0]["Authorization"] == "Bearer our token"
    assert peer.headers[0]["Content-Type"] == "application/octet-stream"


def test_clips_keep_their_frames(make_peer, make_scoring):
    peer = make_peer()
    scoring = make_scoring(peer)
    clips = media(2, frames=5)
    send(scoring, clips, metadata=[{"video_fps": 16.0}] * 2)
    scores = scoring.collect(5)
    head, array = peer.requests[0]
    assert array.shape == (2, 3, 5, 8, 8)  # (B, C, T, H, W)
    assert (head["media_type"], head["video_infos"]) == ("video", [{"video_fps": 16.0}] * 2)
    torch.testing.assert_close(scores.total, red(clips), rtol=0, atol=1e-7)


def test_rows_come_back_in_order_whatever_the_batches(make_peer, make_scoring):
    peer = make_peer(polls=1)
    scoring = make_scoring(peer, batch_size=3)
    pictures = media(10)
    send(scoring, pictures[[7, 1, 3, 5]], [7, 1, 3, 5])
    send(scoring, pictures[[0, 2, 4, 6, 8, 9]], [0, 2, 4, 6, 8, 9])
    scores = scoring.collect(5)
    assert sorted(len(head["prompts"]) for head, _ in peer.requests) == [1, 3, 3, 3]
    assert torch.equal(scores.total, red(pictures))
    assert list(scores.parts) == ["red"]
    assert torch.equal(scores.parts["red"], scores.total)
    assert scoring.collect(5).total.shape == (0,)


def test_requests_leave_while_sampling_goes_on(make_peer, make_scoring):
    peer = make_peer()
    scoring = make_scoring(peer)
    send(scoring, media(2), [0, 1])
    end = time.monotonic() + 5
    while not peer.requests:
        assert time.monotonic() < end
        time.sleep(0.01)
    send(scoring, media(1), [2])
    scoring.collect(5)
    assert len(peer.requests) == 2


def test_the_first_requests_arrive_before_the_last_are_sent(make_peer, make_scoring, monkeypatch):
    # Reference: how many were being read at the same time, of twelve that were ready at once.
    peer = make_peer()
    reading, most, lock = 0, 0, threading.Lock()
    stream = exchange.httpx.Client.stream

    def counted(self, method, url, **request):
        nonlocal reading, most
        if "content" in request:
            with lock:
                reading += 1
                most = max(most, reading)
            time.sleep(0.02)
            with lock:
                reading -= 1
        return stream(self, method, url, **request)

    monkeypatch.setattr(exchange.httpx.Client, "stream", counted)
    scoring = make_scoring(peer)
    send(scoring, media(24))
    scoring.collect(5)
    assert len(peer.requests) == 12
    assert most == exchange.UPLOADS


def test_the_sum(make_peer, make_scoring):
    # Reference: by hand. a: clip(1..2) * 2; x + y of b: clip(-5..5) * 0.5; c has weight 0 and is not sent.
    table = {"a": {"a": [0.0, 1.5, 9.0]}, "b": {"x": [1.0, -9.0, 0.25], "y": [2.0, 1.0, 0.25]}}
    peer = make_peer(table)
    functions = (
        RewardFunction(name="a", weight=2.0, clip_min=1.0, clip_max=2.0),
        RewardFunction(name="b", weight=0.5, score_key="x + y"),
        RewardFunction(name="c", weight=0.0),
    )
    scoring = make_scoring(
        peer, functions=functions, scale=10.0, reward_clip_min=1.0, reward_clip_max=4.0, batch_size=3
    )
    send(scoring, media(3))
    scores = scoring.collect(5)
    # sums: 2 + 1.5, 3 - 2.5, 4 + 0.25
    assert scores.total.tolist() == [35.0, 10.0, 40.0]
    told = {"b/x": [1, -9, 0.25], "b/y": [2, 1, 0.25]}  # what is added is reported as well
    assert {n: part.tolist() for n, part in scores.parts.items()} == {"a": [0, 1.5, 9], "b": [3, -8, 0.5]} | told
    assert peer.requests[0][0]["reward_fn"] == {"a": 2.0, "b": 0.5}


def test_one_reward_may_give_several_parts(make_peer, make_scoring):
    peer = make_peer({"d": {"vq": [1.0, 2.0], "mq": [3.0, 4.0]}})
    functions = (RewardFunction(name="d", score_key="vq"), RewardFunction(name="d", score_key="mq", weight=2.0))
    scoring = make_scoring(peer, functions=functions, reward_clip_max=100.0)
    send(scoring, media(2))
    scores = scoring.collect(5)
    assert scores.total.tolist() == [7.0, 10.0]
    assert list(scores.parts) == ["d/vq", "d/mq"]


def test_metadata_travel(make_peer, make_scoring):
    peer = make_peer({"gen_eval": {"gen_eval_reward": [1.0, 0.0]}})
    scoring = make_scoring(peer, functions=(RewardFunction(name="gen_eval", score_key="gen_eval_reward"),))
    items = [{"tag": "colors", "include": [{"class": "cat", "count": 1, "color": "red"}], "exclude": []}] * 2
    send(scoring, media(2), metadata=items)
    assert scoring.collect(5).total.tolist() == [1.0, 0.0]
    head = peer.requests[0][0]
    assert head["metadata"] == items
    assert head["geneval_tags"] == ["colors", "colors"]
    assert head["geneval_includes"] == [items[0]["include"]] * 2
    with pytest.raises(RewardError, match=r"'gen_eval' needs tag and include of every item; .* for prompt 'prompt 7'"):
        send(scoring, media(1), [7])
    send(scoring, media(1), [8], [{"tag": "colors", "include": {1, 2}}])
    with pytest.raises(RewardError, match=r"metadata that are not JSON cannot travel"):
        scoring.collect(5)


def test_the_replica_is_asked_again(make_peer, make_scoring):
    for replica in ("replica-7", None):
        peer = make_peer(replica=replica)
        scoring = make_scoring(peer)
        send(scoring, media(2))
        scoring.collect(5)
        assert peer.pulls[0][1].get("X-Lepton-Replica-Target") == replica


REFUSAL = [
    ((401, {}, {"message": "no"}), r"refused with 401: no; see REMOTE_REWARD_TOKEN"),
    ((404, {}, {"detail": "Not Found"}), "refused with 404: Not Found"),
    ((413, {}, {"message": "too large"}), "refused with 413: too large"),
    ((200, {}, {"message": "no uuid"}), "has no uuid"),
]


@pytest.mark.parametrize(("answer", "words"), REFUSAL)
def test_what_will_not_pass_ends_at_once(make_peer, make_scoring, answer, words):
    peer = make_peer()
    peer.script["enqueue"] = [answer] * 9
    scoring = make_scoring(peer)
    send(scoring, media(2))
    with pytest.raises(RewardError, match=words) as caught:
        scoring.collect(5)
    assert peer.url in str(caught.value)
    assert len(peer.script["enqueue"]) == 8


ANSWERS = [
    (
        {"error": "prompt has no quotes", "scores": None},
        r"reward 'red' of the reward service http://\S+: prompt has no quotes",
    ),
    ({"scores": {"other": [1.0, 2.0]}}, r"has no score 'red'; it has \['other'\]; set score_key"),
    ({"scores": {"red": [1.0]}}, r"'red' has 1 scores for 2 pictures"),
    ({"scores": {"red": [1.0, "2"]}}, r"'red' is no list of numbers"),
    ({"scores": {"red": [1.0, True]}}, r"'red' is no list of numbers"),
    (b'{"scores": {"red": [1.0, NaN]}}', r"'red' holds NaN or infinity"),
    ({"scores": None}, "the answer has no scores"),
    (b"<html>", "found a NoneType as the answer"),
]


@pytest.mark.parametrize(("found", "words"), ANSWERS)
def test_what_is_no_score_is_an_error_that_names_reward_and_service(make_peer, make_scoring, found, words):
    peer = make_peer()
    peer.script["pull"] = [(200, {}, found)]
    scoring = make_scoring(peer)
    send(scoring, media(2))
    with pytest.raises(RewardError, match=words) as caught:
        scoring.collect(5)
    assert "2 pictures, first prompt 'prompt 0'" in str(caught.value)


def test_what_may_pass_is_tried_again(make_peer, make_scoring):
    peer = make_peer()
    busy = (503, {"Retry-After": "0"}, {"message": "the queue is full"})
    peer.script["enqueue"] = [busy, (500, {}, b"oops"), "drop", (429, {}, {}), (502, {}, b"<html>")]
    peer.script["pull"] = ["drop", (500, {}, {"message": "Error pulling scores"}), (504, {}, b"")]
    scoring = make_scoring(peer, patience_s=30.0)
    pictures = media(2)
    send(scoring, pictures)
    assert torch.equal(scoring.collect(5).total, red(pictures))
    assert len(peer.requests) == 1
    assert any("refused with 503: the queue is full" in line for line in scoring.said)


@pytest.mark.parametrize(
    ("endpoint", "answer", "words"),
    [
        (
            "enqueue",
            (500, {}, {"message": "oops"}),
            r"did not take a request for \d+ s; last: .* refused with 500: oops",
        ),
        ("enqueue", "drop", r"did not take a request for \d+ s; last: .*disconnected"),
        ("enqueue", "trickle", r"did not take a request for \d+ s; last: .*ReadTimeout: the answer was not complete"),
        ("pull", (500, {}, {"message": "oops"}), r"did not answer for reward 'red' for \d+ s; last: .* with 500: oops"),
        (
            "pull",
            "trickle",
            r"did not answer for reward 'red' for \d+ s; last: .*ReadTimeout: the answer was not complete",
        ),
    ],
)
def test_what_does_not_pass_is_given_up_in_time_and_named(
    make_peer, make_scoring, monkeypatch, endpoint, answer, words
):
    monkeypatch.setattr(exchange, "ANSWER_S", 0.1)
    peer = make_peer()
    peer.script[endpoint] = [answer] * 999
    scoring = make_scoring(peer, patience_s=0.5)
    started = time.monotonic()
    send(scoring, media(2))
    with pytest.raises(RewardError, match=words) as caught:
        scoring.collect(5)
    assert time.monotonic() - started < 10
    assert caught.value.exit_code == 1


def test_an_answer_without_end_is_cut_off(make_peer, make_scoring, monkeypatch):
    monkeypatch.setattr(exchange, "LARGEST_ANSWER", 1000)
    peer = make_peer()
    peer.script["pull"] = [(200, {}, b"[" + b" " * 2000)] * 99
    scoring = make_scoring(peer, patience_s=0.2)
    send(scoring, media(2))
    with pytest.raises(RewardError, match="ReadError: the answer has more than 1000 bytes"):
        scoring.collect(5)


def test_retry_after_is_kept(make_peer, make_scoring):
    peer = make_peer()
    peer.script["enqueue"] = [(503, {"Retry-After": "1"}, {})]
    scoring = make_scoring(peer)
    started = time.monotonic()
    send(scoring, media(2))
    scoring.collect(5)
    assert time.monotonic() - started >= 1


def test_a_service_that_stays_away_is_given_up_and_named(make_scoring):
    scoring = make_scoring("http://127.0.0.1:9/api/reward", patience_s=0.5)
    send(scoring, media(4))
    started = time.monotonic()
    words = r"reward service http://127\.0\.0\.1:9/\S+ did not take a request for \d+ s; last: .*Connection refused"
    with pytest.raises(RewardError, match=words):
        scoring.collect(0.1)
    assert time.monotonic() - started < 3
    assert len(scoring.said) == 1  # once, not once a request or a try
    assert "does not answer" in scoring.said[0]
    assert "at most 0.5 s" in scoring.said[0]


def test_scores_that_do_not_come_are_asked_for_again_and_then_given_up(make_peer, make_scoring):
    peer = make_peer(polls=10**6)
    scoring = make_scoring(peer, deadline_s=0.3)
    send(scoring, media(2))
    with pytest.raises(
        RewardError, match=r"no scores of 'red' within 0\.3 s, 3 times \(2 pictures, first prompt 'prompt 0'\)"
    ):
        scoring.collect(5)
    assert len(peer.requests) == 3


def test_a_request_that_was_lost_is_sent_again(make_peer, make_scoring):
    peer = make_peer()
    peer.script["pull"] = [(400, {}, {"message": "?", "state": "unknown"})] * 3
    scoring = make_scoring(peer)
    pictures = media(2)
    send(scoring, pictures)
    assert torch.equal(scoring.collect(5).total, red(pictures))
    assert len(peer.requests) == 2
    assert [line for line in scoring.said if "a request was lost in a restart; sending 2 pictures again" in line]


def test_replicas_that_take_turns_to_know_nothing_lose_nothing(make_peer, make_scoring):
    peer = make_peer(polls=2)
    peer.script["pull"] = [(400, {}, {"message": "?", "state": "unknown"})] * 2
    scoring = make_scoring(peer)
    send(scoring, media(2))
    scoring.collect(5)
    assert len(peer.requests) == 1


def test_another_replica_takes_over(make_peer, make_scoring):
    peer = make_peer()
    scoring = make_scoring("http://127.0.0.1:9/api/reward", peer)
    pictures = media(6)
    send(scoring, pictures)
    assert torch.equal(scoring.collect(5).total, red(pictures))
    assert scoring.said == []  # nothing had to wait


def test_pictures_that_are_not_finite_are_not_sent(make_peer, make_scoring):
    peer = make_peer()
    scoring = make_scoring(peer)
    pictures = media(2)
    pictures[1, 0, 0, 0, 0] = float("nan")
    send(scoring, pictures)
    with pytest.raises(RewardError, match="NaN or infinity in the picture for prompt 'prompt 1'"):
        scoring.collect(5)
    assert peer.requests == []


def test_rows_and_lengths_are_checked(make_peer, make_scoring):
    scoring = make_scoring(make_peer())
    send(scoring, media(1), [0])
    with pytest.raises(ValueError, match="submitted twice"):
        send(scoring, media(1), [0])
    with pytest.raises(ValueError, match="lengths differ"):
        scoring.submit([1], media(2), ["a"], [{}])
    scoring.close()
    with pytest.raises(ValueError, match="after close"):
        send(scoring, media(1), [2])


def test_closing_ends_the_threads(make_scoring):
    before = threading.active_count()
    scoring = make_scoring("http://127.0.0.1:9/api/reward", patience_s=60.0)
    send(scoring, media(4))
    time.sleep(0.1)
    scoring.close()
    end = time.monotonic() + 5
    while threading.active_count() > before:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_token_is_tried_before_anything_is_loaded(make_peer, make_scoring):
    peer = make_peer()
    peer.script["ping"] = [(401, {}, {"message": "wrong"})]
    scoring = make_scoring(peer)
    with pytest.raises(UserError, match="refused with 401: wrong; see REMOTE_REWARD_TOKEN"):
        scoring.check()
    scoring.check()


def test_a_service_that_is_down_before_the_start_is_an_error(make_peer, make_scoring):
    nobody = "http://127.0.0.1:9/api/reward"
    away = make_scoring(nobody, patience_s=0.2)
    words = r"reward service http://127\.0\.0\.1:9/\S+ does not answer \(ConnectError: .*\)\n  start it, or see REMOTE_"
    with pytest.raises(RewardError, match=words) as caught:
        away.check()
    assert caught.value.exit_code == 2
    peer = make_peer()
    one_of_two = make_scoring(nobody, peer)
    one_of_two.check()
    assert "does not answer (ConnectError" in one_of_two.said[0]
    assert "others do, going on without it" in one_of_two.said[0]
    peer.script["ping"] = [(502, {}, b"<html>")]  # a balancer whose service is not there yet
    make_scoring(peer).check()
    assert peer.script["ping"] == []
    peer.script["ping"] = [(502, {}, b"<html>")] * 9
    with pytest.raises(RewardError, match=r"does not answer \(502\)"):
        make_scoring(peer, patience_s=0.2).check()


def test_a_trial_waits_for_nobody_who_is_silent(make_scoring, monkeypatch):
    monkeypatch.setattr(remote, "PREFLIGHT_S", 0.2)
    away = make_scoring("http://127.0.0.1:9/api/reward", patience_s=60.0)
    started = time.monotonic()
    with pytest.raises(RewardError, match=r"did not take a request for [0-9] s"):
        away.trial(media(2), ["a", "b"], [{}, {}], only_strict=True)
    assert time.monotonic() - started < 10
    assert away._services[0].exchange.patience.silence_s == 60.0


def test_the_token_is_in_no_message(make_peer, make_scoring):
    # A service that says everything back; addresses with a password; what a person reads has neither.
    peer = make_peer()
    peer.script["enqueue"] = [
        (503, {"Retry-After": "0"}, {"message": "busy, our token"}),
        (413, {}, {"message": "our token"}),
    ]
    scoring = make_scoring(peer.url.replace("http://", "http://someone:secret@"))
    send(scoring, media(2))
    with pytest.raises(RewardError, match=r"refused with 413: \*\*\*") as caught:
        scoring.collect(5)
    peer.script["pull"] = [(200, {}, {"error": "bad our token", "scores": None})]
    send(scoring, media(2))
    with pytest.raises(RewardError, match=r"bad \*\*\*") as other:
        scoring.collect(5)
    said = "\n".join([str(caught.value), str(other.value), *scoring.said])
    assert "busy, ***" in said
    assert "our token" not in said
    assert "secret" not in said


def test_rewards_of_several_services(make_peer, make_scoring, monkeypatch):
    monkeypatch.setenv("REMOTE_REWARD_TOKEN", "our token")
    # Reference: by hand; each service hears of its own rewards alone.
    first, second = make_peer({"a": {"a": [1.0, 2.0]}}), make_peer({"b": {"b": [10.0, 20.0], "c": [5.0, 6.0]}})
    functions = (
        RewardFunction(name="a"),
        RewardFunction(name="b", url=second.url, clip_max=100.0),
        RewardFunction(name="b", url=f"{second.url}/enqueue", score_key="c", weight=2.0, clip_max=100.0),
    )
    scoring = make_scoring(first, functions=functions, reward_clip_max=100.0)
    scoring.check()
    for rows in ([0, 1], [2, 3]):
        send(scoring, media(2), rows)
    scores = scoring.collect(5)
    assert scores.total.tolist() == [21.0, 34.0] * 2
    assert {name: part.tolist()[:2] for name, part in scores.parts.items()} == {
        "a": [1, 2],
        "b/b": [10, 20],
        "b/c": [5, 6],
    }
    assert [head["reward_fn"] for head, _ in first.requests] == [{"a": 1.0}] * 2
    assert [head["reward_fn"] for head, _ in second.requests] == [{"b": 2.0}] * 2
    assert second.headers[0]["Authorization"] == "Bearer our token"


def test_geneval_hears_whether_it_is_for_training(make_peer, make_scoring):
    # Reference: the page: true leaves the published verdict out (the service answers 0), so it is not reported then,
    # and not asked for when it is what counts.
    items = [{"tag": "colors", "include": [{"class": "cat", "count": 1}]}] * 2
    table = {"gen_eval": {"gen_eval_score": [0.5, 1.0], "gen_eval_strict": [0.0, 1.0], "gen_eval_reward": [0.0, 0.0]}}
    strict, published = "gen_eval/gen_eval_strict", "gen_eval/gen_eval_reward"
    cases = [
        (RewardFunction(name="gen_eval"), True, True, ["gen_eval", strict]),
        (RewardFunction(name="gen_eval"), False, False, ["gen_eval", published, strict]),
        (RewardFunction(name="gen_eval", only_strict=False), True, False, ["gen_eval", published, strict]),
        (RewardFunction(name="gen_eval", only_strict=True), False, True, ["gen_eval", strict]),
        (
            RewardFunction(name="gen_eval", score_key="gen_eval_reward"),
            True,
            False,
            ["gen_eval", "gen_eval/gen_eval_score", strict],
        ),
    ]
    for function, training, sent, parts in cases:
        peer = make_peer(table)
        scoring = make_scoring(peer, functions=(function,))
        scoring.submit([0, 1], media(2), ["a", "b"], items, training)
        assert list(scoring.collect(5).parts) == parts
        assert peer.requests[0][0]["geneval_only_strict"] is sent
    wrong = (
        RewardFunction(name="red", only_strict=True),
        RewardFunction(name="gen_eval", score_key="gen_eval_reward", only_strict=True),
    )
    with pytest.raises(
        UserError, match=r"'red': found only_strict; accepted: for gen_eval and geneval alone\n.*leaves gen_eval_rew"
    ):
        make_scoring(make_peer(), functions=wrong)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("localhost:8080", "found the url 'localhost:8080'"),
        ("http://", "found the url 'http://'"),
        (" , ", "found the url ' , '"),
        ("http://me:secret@host/api/reward", "holds a name or password; accepted: REMOTE_REWARD_TOKEN"),
    ],
)
def test_urls_that_are_refused(make_peer, make_scoring, url, words):
    with pytest.raises(UserError, match=f"reward 'a': .*{words}") as caught:
        make_scoring(make_peer(), functions=(RewardFunction(name="a", url=url),))
    assert "secret" not in str(caught.value)


def test_addresses_come_from_the_environment(monkeypatch):
    for name in ("REMOTE_REWARD_ENQUEUE_URL", "REMOTE_REWARD_FETCH_URL", "REMOTE_REWARD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="REMOTE_REWARD_ENQUEUE_URL and REMOTE_REWARD_FETCH_URL are not set") as caught:
        services.addresses()
    assert "REMOTE_REWARD_TOKEN" in str(caught.value)
    monkeypatch.setenv("REMOTE_REWARD_ENQUEUE_URL", "http://a/enqueue, http://b/enqueue")
    monkeypatch.setenv("REMOTE_REWARD_FETCH_URL", "http://a/pull")
    found = services.addresses()
    assert found == Addresses(("http://a/enqueue", "http://b/enqueue"), ("http://a/pull",), "")
    monkeypatch.setenv("REMOTE_REWARD_FETCH_URL", "localhost:8080")
    with pytest.raises(UserError, match="found 'localhost:8080' as the address"):
        services.addresses()
