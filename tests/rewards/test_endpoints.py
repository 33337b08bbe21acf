"""Rewards behind endpoints, asked of servers on this machine that speak the protocols. No real model was asked."""

import base64
import io
import json
import math
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from PIL import Image

from sanarl.errors import UserError
from sanarl.rewards import build
from sanarl.rewards.scorers.judges import CosmosReason1, UnifiedReward, sent_frames
from sanarl.rewards.scorers.peers import DanceGRPO, HPSv3

NONE = [{}] * 4


@pytest.fixture
def serve():
    """A function that serves ``answer(path, headers, body) -> (status, bytes)`` and gives the address."""
    running = []

    def start(answer):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, text = answer(self.path, self.headers, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                for byte in [text] if status != 299 else [text[i : i + 1] for i in range(len(text))]:
                    self.wfile.write(byte)  # 299: a byte at a time
                    time.sleep(0.1 if status == 299 else 0)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()


def completion(text, **more):
    return 200, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}, **more}]}).encode()


def seen_picture(url):
    assert url.startswith("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))))


# ------------------------------------------------------------------ unified_reward


def judge(_path, _headers, body):
    """Gives a picture 1 to 5 by its own pixels, so that the reference can be computed beside it."""
    (message,) = json.loads(body)["messages"]
    brightness = seen_picture(message["content"][0]["image_url"]["url"]).mean() / 255
    return completion(f"It fits.\nFinal Score: {1 + 4 * brightness:.2f}")


def test_unified_reward(serve, pictures, prompts):
    """Reference: what the judge computes from the pixels that reached it, divided by 5."""
    scorer = UnifiedReward(f"{serve(judge)}/v1")
    scores = scorer(pictures, prompts, NONE)
    expected = [round(1 + 4 * p.mean().item(), 2) / 5 for p in pictures]
    assert scores.dtype == torch.float32
    assert scores.tolist() == pytest.approx(expected, abs=3e-3)
    assert all(0.2 <= score <= 1 for score in scores.tolist())
    single = [scorer(pictures[i : i + 1], prompts[i : i + 1], [{}]).item() for i in range(4)]
    assert single == pytest.approx(scores.tolist())
    assert scorer(pictures.transpose(0, 1), prompts[:1], [{}]).tolist() == pytest.approx([scores.mean().item()])


def test_what_is_asked(serve, pictures, tmp_path, monkeypatch):
    seen = []

    def look(path, headers, body):
        seen.append((path, headers.get("Authorization"), json.loads(body)))
        return completion("Final Score: 3")

    (tmp_path / "q.txt").write_text("Rate {prompt}!", encoding="utf-8")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    scorer = UnifiedReward(f"{serve(look)}/v1/", model="mine", question_file=str(tmp_path / "q.txt"))
    assert scorer(pictures[:1], ["a {cat}"], [{}]).tolist() == [pytest.approx(0.6)]
    ((path, key, body),) = seen
    assert (path, key) == ("/v1/chat/completions", "Bearer secret")
    assert (body["model"], body["temperature"], body["stream"]) == ("mine", 0, False)
    content = body["messages"][0]["content"]
    assert content[1] == {"type": "text", "text": "Rate a {cat}!"}
    eight_bit = (pictures[0, 0] * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(seen_picture(content[0]["image_url"]["url"]), eight_bit)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (completion("I like it"), "prompt 'a': the answer has no 'Final Score:' from 1 to 5: 'I like it'"),
        (completion("Final Score: 10"), "has no 'Final Score:'"),
        (completion("Final Score: nan"), "has no 'Final Score:'"),
        ((200, b"{}"), "gave no chat completion: '{}'"),
        ((200, b"<html>"), "gave no chat completion: '<html>'"),
        ((401, b"no"), "refused with status 401: no; see endpoint_api_key or OPENAI_API_KEY"),
        ((404, b"no such model"), "refused with status 404: no such model"),
        ((503, b"busy"), "gave no answer in 2 tries; last: status 503: busy"),
        ((200, b"x" * 5_000_000), "answered with more than 4194304 bytes"),
    ],
)
def test_faults_are_named_and_bounded(serve, pictures, answer, expected):
    url = serve(lambda *_: answer)
    started = time.monotonic()
    with pytest.raises(UserError) as caught:
        build({"unified_reward": 1.0}, {"unified_reward": {"endpoint_url": url, "tries": 2}})(pictures[:1], ["a"], [{}])
    assert str(caught.value).startswith("reward 'unified_reward': ")
    assert expected in str(caught.value)
    assert time.monotonic() - started < 60


def test_silence_and_nobody_there(serve, pictures):
    def slow(*_):
        time.sleep(0.6)
        return completion("Final Score: 1")

    for url, cause in ((serve(slow), "ReadTimeout"), ("http://127.0.0.1:9", "ConnectError")):
        with pytest.raises(UserError, match=f"gave no answer in 1 tries; last: {cause}"):
            UnifiedReward(url, deadline_s=0.2, tries=1)(pictures[:1], ["a"], [{}])


def test_an_answer_that_trickles_in_is_cut_off(serve, pictures):
    url = serve(lambda *_: (299, b"x" * 600))
    started = time.monotonic()
    with pytest.raises(UserError, match=r"last: TimeoutError: the answer was not there after 0\.3 s"):
        UnifiedReward(url, deadline_s=0.3, tries=1)(pictures[:1], ["a"], [{}])
    assert time.monotonic() - started < 30  # all of it takes 60


def test_a_busy_endpoint_is_asked_again(serve, pictures):
    answers = iter([(503, b"busy"), completion("Final Score: 5")])
    assert UnifiedReward(serve(lambda *_: next(answers)))(pictures[:1], ["a"], [{}]).tolist() == [1.0]


@pytest.mark.parametrize("kind", [UnifiedReward, CosmosReason1, HPSv3, DanceGRPO])
def test_no_address(kind):
    for url in (None, "host:8000"):
        with pytest.raises(UserError, match=f"found endpoint_url {url!r}; "):
            kind(url)


# ------------------------------------------------------------------ cosmos_reason1


def test_cosmos_reason1(serve, pictures):
    """Reference: the softmax of the two logits that the endpoint tells, in float64."""
    seen = []

    def answer(_path, _headers, body):
        asked = json.loads(body)
        frames = asked["messages"][1]["content"][0]["video_url"]["url"].partition(",")[2].split(",")
        images = [np.asarray(Image.open(io.BytesIO(base64.b64decode(f)))) for f in frames]
        seen.append((asked["max_tokens"], asked["messages"][1]["content"][1]["text"], len(images), images[0].shape))
        level = float(images[0].mean()) / 255
        likely = [
            {"token": "Yes", "logprob": -level},
            {"token": "No", "logprob": -2 * level},
            {"token": "x", "logprob": -9},
        ]
        return completion("Yes", logprobs={"content": [{"token": "Yes", "logprob": -level, "top_logprobs": likely}]})

    clips = torch.stack([pictures[:3, 0], pictures[1:, 0]])  # two clips of three frames
    scores = CosmosReason1(serve(answer))(clips, ["a", "b"], NONE[:2])
    assert sorted(seen) == [(1, "a", 2, (40, 56, 3)), (1, "b", 2, (40, 56, 3))]  # an even number of frames
    for row, clip in enumerate(clips):
        level = clip[0].mean().item()
        expected = math.exp(-2 * level) / (math.exp(-level) + math.exp(-2 * level))
        assert scores["reward"][row].item() == pytest.approx(expected, abs=2e-3)
    assert torch.equal(scores["reward"], scores["no_score"])
    assert {score.dtype for score in scores.values()} == {torch.float32}
    assert ((scores["reward"] >= 0) & (scores["reward"] <= 1)).all()
    single = [CosmosReason1(serve(answer))(clips[i : i + 1], ["a"], [{}])["reward"].item() for i in range(2)]
    assert single == scores["reward"].tolist()
    torch.testing.assert_close(scores["no_logit"], 2 * scores["yes_logit"])


def test_cosmos_reason1_faults(serve, pictures):
    scorer = CosmosReason1(serve(lambda *_: completion("Yes")))
    with pytest.raises(UserError, match="does not tell how likely Yes and No are"):
        scorer(pictures.transpose(0, 1), ["a"], [{}])
    with pytest.raises(UserError, match="found pictures; accepted: clips"):
        scorer(pictures, ["a"] * 4, NONE)


def test_frames_that_are_sent():
    """Reference: by hand: every frame up to 160, then every second, third ...; an even number."""
    assert sent_frames(5) == [0, 1, 2, 3]
    assert len(sent_frames(160)) == 160
    assert sent_frames(161) == list(range(0, 160, 2))
    assert sent_frames(400)[:3] == [0, 3, 6]


# ------------------------------------------------------------------ the peers' service


def service(keys):
    """Scores a request by the mean of its bytes: the n-th key gets n times that."""
    held = {}

    def answer(path, _headers, body):
        if path.endswith("/enqueue"):
            line, _, array = body.partition(b"\n")
            head = json.loads(line)
            media = np.load(io.BytesIO(array))
            held["1"] = head, media
            return 200, json.dumps({"uuid": "1"}).encode()
        head, media = held["1"]
        mean = media.reshape(len(media), -1).mean(1) / 255
        scores = {key: ((n + 1) * mean).tolist() for n, key in enumerate(keys)}
        held["seen"] = (head["reward_fn"], head["media_type"], media.shape, head.get("video_infos"))
        return 200, json.dumps({"scores": scores, "duration": "0.1", "type": next(iter(head["reward_fn"]))}).encode()

    return answer, held


def test_hpsv3(serve, pictures, prompts):
    answer, held = service(["hpsv3"])
    scores = HPSv3(f"{serve(answer)}/api/reward", batch_size=3)(pictures, prompts, NONE)
    torch.testing.assert_close(scores, pictures.flatten(1).mean(1), rtol=1e-5, atol=1e-5)  # its dtype as well
    assert held["seen"] == ({"hpsv3": 1.0}, "image", (1, 40, 56, 3), None)
    clip = pictures.transpose(0, 1)  # of four frames; reference: their mean and their minimum
    for over, wanted in (("mean", pictures.mean()), ("min", pictures.flatten(1).mean(1).min())):
        score = HPSv3(f"{serve(answer)}/api/reward", over_frames=over)(clip, ["a"], [{}])
        torch.testing.assert_close(score, wanted[None], rtol=1e-5, atol=1e-5)


def test_dance_grpo(serve, pictures):
    answer, held = service(["overall_reward", "vq_reward", "mq_reward", "ta_reward"])
    scorer = DanceGRPO(f"{serve(answer)}/api/reward/enqueue", fps=8)
    scores = scorer(pictures.transpose(0, 1), ["a"], [{}])
    mean = pictures.mean()[None]
    for n, key in enumerate(["reward", "vq_reward", "mq_reward", "ta_reward"]):
        torch.testing.assert_close(scores[key], (n + 1) * mean, rtol=1e-5, atol=1e-5)
    assert held["seen"] == ({"dance_grpo": 1.0}, "video", (1, 3, 4, 40, 56), [{"video_fps": 8}])
    with pytest.raises(UserError, match="found pictures"):
        scorer(pictures, ["a"] * 4, NONE)
