"""What goes wrong at the service: bounded in time and size, named, and never a wrong score."""

import contextlib
import io
import json
import os
import pickle
import signal
import socket
import subprocess
import threading
import time

import numpy as np
import pytest

HEAD = {"prompts": ["a", "b"], "reward_fn": {"moody": 1.0}, "media_type": "image"}


def npy(array, allow_pickle=False):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=allow_pickle)
    return file.getvalue()


def line(**fields):
    return json.dumps({**HEAD, **fields}).encode() + b"\n"


IMAGE = npy(np.zeros((2, 8, 8, 3), np.uint8))
LIES = IMAGE.replace(b"(2, 8, 8, 3)", b"(2, 8, 8, 4)")
HUGE = IMAGE.replace(b"(2, 8, 8, 3), }     ", b"(2, 800000, 8, 3), }")


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "no line of JSON"),
        (b"{}", 400, "no line of JSON"),
        (b"{\n" + IMAGE, 400, "not JSON"),
        (b"\xff\xfe\n" + IMAGE, 400, "not JSON"),
        (b"[" * 100_000 + b"\n" + IMAGE, 400, "not JSON"),
        (b"[]\n" + IMAGE, 400, "a JSON list; accepted: an object"),
        (b'{"prompts": [NaN]}\n' + IMAGE, 400, "NaN is not JSON"),
        (b'{"reward_fn": {"moody": 1}}\n' + IMAGE, 400, "prompts is missing"),
        (line(prompts="ab") + IMAGE, 400, "prompts is missing or no list of texts"),
        (b'{"prompts": ["a", "b"]}\n' + IMAGE, 400, "reward_fn is missing"),
        (line(reward_fn={}) + IMAGE, 400, "reward_fn is missing"),
        (line(reward_fn={"moody": "1"}) + IMAGE, 400, "reward_fn"),
        (line(metadata=[{}]) + IMAGE, 400, "1 metadata for 2 prompts"),
        (line(geneval_tags=["a"]) + IMAGE, 400, "geneval_tags"),
        (line(), 400, "truncated"),
        (line() + IMAGE[:50], 400, "truncated"),
        (line() + IMAGE[:-1], 400, "truncated"),
        (line() + IMAGE + b"x", 400, "followed by other bytes"),
        (line() + LIES, 400, "truncated"),
        (line() + pickle.dumps({"a": 1}), 400, "a pickle"),
        (line() + b"PK\x03\x04" + IMAGE, 400, "a zip file"),
        (line() + b"garbage" + IMAGE, 400, "other bytes"),
        (line() + npy(np.array([{"a": 1}], object), True), 400, "Python objects (a pickle)"),
        (line() + npy(np.zeros((2, 8, 8, 3))), 400, "float64"),
        (line() + IMAGE.replace(b"\x93NUMPY\x01", b"\x93NUMPY\x07"), 400, "version 7.0"),
        (line() + IMAGE[:8] + b"\xff\xff" + IMAGE[10:], 400, "65545 bytes"),
        (line() + IMAGE.replace(b"'descr'", b"'descx'"), 400, "cannot be read"),
        (line() + HUGE, 413, "accepted: 20 MB"),
        (line(prompts=["a"] * 5000) + IMAGE, 413, "accepted: at most 4096"),
    ],
    ids=range(29),
)
def test_what_is_no_request_is_refused(service, body, status, words):
    found, answer, _ = service.post("enqueue", body)
    assert (found, words in answer["message"]) == (status, True), answer
    service.say_healthy()


@pytest.mark.parametrize(
    ("fields", "media", "words"),
    [
        ({"reward_fn": {"aesthetic": 1.0}}, np.zeros((2, 8, 8, 3), np.uint8), "'aesthetic' is not served here"),
        ({}, np.zeros((3, 8, 8, 3), np.uint8), "3 media for 2 prompts"),
        ({}, np.zeros((2, 8, 8, 4), np.uint8), "accepted: uint8 (B, H, W, 3)"),
        ({}, np.zeros((2, 8, 8, 3), np.float16), "float16 (2, 8, 8, 3) as image"),
        ({"media_type": "video"}, np.zeros((2, 8, 8, 3), np.uint8), "accepted: uint8 (B, 3, T, H, W)"),
        ({"media_type": None}, np.zeros((2, 16, 1, 2, 2), np.float16), "latents are not decoded here"),
        ({"media_type": "latent"}, np.zeros((2, 7, 1, 2, 2), np.float16), "with 16 or 48 channels"),
        ({"prompts": ["raise", "b"]}, np.zeros((2, 8, 8, 3), np.uint8), "RuntimeError: no such luck"),
        ({"prompts": ["nan", "b"]}, np.zeros((2, 8, 8, 3), np.uint8), "found nan for prompt 'nan'"),
        ({"prompts": ["short", "b"]}, np.zeros((2, 8, 8, 3), np.uint8), "shape (1,)"),
    ],
)
def test_what_cannot_be_scored_is_a_failure_for_all_who_pull(service, fields, media, words):
    # A trainer of Cosmos-RL's tries every refusal again for an hour, so these are accepted.
    status, answer, _ = service.post("enqueue", line(**fields) + npy(media))
    assert status == 200
    reward = next(iter({**HEAD, **fields}["reward_fn"]))
    found = service.pulled(answer["uuid"], reward)
    assert found["scores"] is None
    assert words in found["error"]
    service.say_healthy()


def test_a_wrong_token_is_refused(service, make_request):
    for token in ("", "wrong", service.token + "x", "ü"):
        status, answer, headers = service.post("enqueue", make_request("ab"), token=token)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert "token" in answer["message"]
        assert service.post("pull", uuid="x", token=token)[0] == 401
    assert service.get("/nowhere")[0] == 401
    assert service.get("/metrics")[0] == 200


def test_a_large_body_is_refused_before_it_is_sent(service):
    # Reference: the answer comes although not a byte of the body did.
    with socket.create_connection(("127.0.0.1", service.port), 5) as connection:
        head = f"POST /api/reward/enqueue HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.token}\r\n"
        connection.sendall(f"{head}Content-Length: 99000000000\r\n\r\n".encode())
        assert b" 413 " in connection.recv(1000)
    with socket.create_connection(("127.0.0.1", service.port), 5) as connection:
        connection.sendall(b"POST /api/reward/enqueue HTTP/1.1\r\nHost: x\r\nContent-Length: 99000000000\r\n\r\n")
        assert b" 401 " in connection.recv(1000)
    with socket.create_connection(("127.0.0.1", service.port), 5) as connection:  # one that sends on regardless
        connection.sendall(f"{head}Content-Length: 30000000\r\n\r\n".encode())
        with contextlib.suppress(ConnectionError):
            connection.sendall(bytes(30_000_000))
        assert b" 413 " in connection.recv(1000)


def test_a_body_that_stops_is_given_up(service, make_request):
    body = make_request("ab")
    with socket.create_connection(("127.0.0.1", service.port), 10) as connection:
        head = f"POST /api/reward/enqueue HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.token}\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:-10])
        assert b" 408 " in connection.recv(1000)  # after body_s = 1
    with socket.create_connection(("127.0.0.1", service.port), 10) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:-10])
    time.sleep(0.2)
    assert service.get("/healthz")[1]["queue"] == 0  # nothing is held for either


def test_a_body_may_be_chunked(service, make_request):
    body = make_request("ab")
    with socket.create_connection(("127.0.0.1", service.port), 10) as connection:
        head = f"POST /api/reward/enqueue HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.token}\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        for part in (body[:7], body[7:60], body[60:61], body[61:]):
            connection.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
        assert b" 200 " in connection.recv(1000)


def test_a_scorer_that_dies_is_replaced_and_the_request_scored(service, make_request, tmp_path):
    answer = service.result(make_request([f"die-once {tmp_path / 'died'}", "b"]))
    assert len(answer["scores"]["moody"]) == 2
    assert "reward moody: its process ended with code 7" in service.log.read_text()
    assert "sanarl_reward_restarts_total" in service.get("/metrics")[1]


@pytest.mark.slow
def test_a_request_that_kills_its_scorer_twice_is_a_failure_and_others_are_scored(service, make_request):
    others = [service.post("enqueue", make_request([f"{i}", "b"]))[1]["uuid"] for i in range(2)]
    answer = service.result(make_request(["die", "b"]))
    assert answer["scores"] is None
    assert answer["error"] == "reward 'moody': its process ended with code 7 while it worked on this request, 2 times"
    assert all(service.pulled(uuid)["scores"] for uuid in others)
    assert service.result(make_request("ab"))["scores"]


def test_a_scorer_that_hangs_is_replaced(service, make_request):
    _, answer, _ = service.post("enqueue", make_request(["hang", "b"]))
    behind = service.post("enqueue", make_request("ab"))[1]["uuid"]
    found = service.pulled(answer["uuid"])
    assert found["error"] == "reward 'moody' did not answer within 2 s; its process was replaced"
    assert service.pulled(behind)["scores"]


@pytest.mark.slow
def test_an_idle_scorer_that_is_stopped_is_found_and_replaced(service, make_request):
    service.say_healthy()
    found = subprocess.run(["pgrep", "-P", str(service.process.pid)], capture_output=True, text=True, check=True)
    for pid in found.stdout.split():
        os.kill(int(pid), signal.SIGSTOP)
    service.said(r"reward moody: its process was ended by SIGKILL: it did not answer within service\.health_s", 10)
    assert service.result(make_request("ab"))["scores"]
    service.say_healthy()


def test_the_log_holds_no_payloads(service, make_request):
    service.result(make_request(["a secret prompt", "b"]))
    service.post("nowhere/%0Aforged", b"")
    deadline = time.monotonic() + 20
    while "POST other 404" not in (log := service.log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)  # a line is written after its answer
    assert "POST enqueue 200" in log
    assert "secret" not in log
    assert service.token not in log
    assert "forged" not in log
    assert "POST other 404" in log


def test_many_at_once_and_a_full_queue(service, make_request):
    # 8 places; one request holds the scorer, the others wait behind it.
    answers = []
    threads = [
        threading.Thread(
            target=lambda i=i: answers.append(service.post("enqueue", make_request([f"slow {0.5 * (i == 0)}", "b"])))
        )
        for i in range(12)
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.05 * (thread is threads[0]))
    for thread in threads:
        thread.join()
    taken = [answer["uuid"] for status, answer, _ in answers if status == 200]
    refused = [(status, headers["retry-after"]) for status, _, headers in answers if status != 200]
    assert len(taken) == 8
    assert [status for status, _ in refused] == [503] * 4
    assert all(1 <= int(seconds) <= 30 for _, seconds in refused)
    assert all(service.pulled(uuid)["scores"] for uuid in taken)
    assert service.result(make_request("ab"))["scores"]


def test_metrics_are_prometheus_text(service, make_request):
    service.result(make_request("ab"))
    text = service.get("/metrics")[1]
    for row in text.splitlines():
        name, _, value = row.rpartition(" ")
        assert row.startswith("# ") or (name.startswith("sanarl_reward_") and float(value) >= 0)
    assert 'sanarl_reward_http_requests_total{endpoint="enqueue",status="200"}' in text
    assert 'sanarl_reward_up{reward="moody"} 1' in text
    assert "sanarl_reward_queue_requests 0" in text
    assert 'sanarl_reward_seconds_bucket{reward="moody",le="+Inf"}' in text
