"""A client written from the protocol page alone, with nothing of sanarl's: every rule of the page against a service."""

import http.client
import json

import numpy as np
import pytest


def test_pictures_are_scored_and_a_pull_can_be_repeated(service, make_request, make_pictures):
    media = make_pictures(3)
    status, answer, headers = service.post(
        "enqueue", make_request("abc", media), {"Content-Type": "application/octet-stream"}
    )
    assert status == 200
    assert set(answer) == {"uuid", "replica_id"}
    assert headers["content-type"] == "application/json"
    first = service.pulled(answer["uuid"])
    # Reference: the mean of the red channel, from the bytes that were sent.
    assert first["scores"]["moody"] == pytest.approx(media[..., 0].mean((1, 2)) / 255, rel=1e-6)
    info = first["input_info"]
    assert info["shape"] == [3, 8, 8, 3]
    assert info["dtype"] == "torch.uint8"
    assert (info["min"], info["max"]) == (f"{media.min():.3f}", f"{media.max():.3f}")
    assert first["type"] == "moody"
    assert float(first["duration"]) >= 0
    assert first["decoded_duration"] == "0.00"
    assert [service.pulled(answer["uuid"]) for _ in range(2)] == [first, first]
    target = {"X-Lepton-Replica-Target": answer["replica_id"]}
    assert service.post("pull", headers=target, uuid=answer["uuid"], type="moody")[:2] == (200, first)


def test_clips_are_scored(service, make_request):
    media = np.random.default_rng(1).integers(0, 256, (2, 3, 5, 8, 8), dtype=np.uint8)  # (B, C, T, H, W)
    answer = service.result(make_request("ab", media, media_type="video", video_infos=[{"video_fps": 16.0}] * 2))
    assert answer["scores"]["moody"] == pytest.approx(media[:, 0].mean((1, 2, 3)) / 255, rel=1e-6)


def test_a_result_that_is_not_there_yet_is_400(service, make_request):
    _, answer, _ = service.post("enqueue", make_request(["slow 0.5", "b"]))
    status, message, _ = service.post("pull", uuid=answer["uuid"], type="moody")
    assert status == 400
    assert message == {"message": f"no scores for {answer['uuid']} yet", "state": "pending"}
    assert service.pulled(answer["uuid"])["scores"]
    status, message, _ = service.post("pull", uuid="never heard of", type="moody")
    assert (status, message["state"]) == (400, "unknown")


def test_a_weight_of_zero_is_skipped_and_its_pull_is_zeros(service, make_request):
    _, answer, _ = service.post(
        "enqueue", make_request("ab", reward_fn={"pickscore": 1, "moody": 0, "dance_grpo": -1.0})
    )
    assert service.pulled(answer["uuid"], "moody")["scores"] == {"moody": [0.0, 0.0]}
    assert service.pulled(answer["uuid"], "pickscore")["scores"]["pickscore"] != [0.0, 0.0]
    # Without a type a pull means dance_grpo.
    status, found, _ = service.post("pull", uuid=answer["uuid"])
    assert status == 200
    assert found["scores"]["overall_reward"] == [0.0, 0.0]


def test_a_reward_that_was_not_asked_for_is_a_failure(service, make_request):
    _, answer, _ = service.post("enqueue", make_request("ab"))
    found = service.pulled(answer["uuid"], "hpsv2")
    assert found["scores"] is None
    assert "was not asked for" in found["error"]


def test_metadata_travel(service, make_request):
    answer = service.result(make_request("ab", metadata=[{"count": 5}, {}]))
    assert answer["scores"]["count"] == [5.0, 0.0]
    # As Cosmos-RL's clients send GenEval's; tag and include are two entries.
    fields = {"geneval_tags": ["colors", "position"], "geneval_includes": [[{"class": "cat"}], []]}
    assert service.result(make_request("ab", **fields))["scores"]["count"] == [2.0, 2.0]


def test_geneval_is_strict_when_it_is_asked_to_be(service, make_request, make_pictures):
    # Reference: the page: without the flag the published verdict (here always 1) is told, with it it is 0; a column for
    # each of six tags, -10 where the sample has another.
    media = make_pictures(2)
    tags = {"geneval_tags": ["colors", "position"], "geneval_includes": [[], []], "reward_fn": {"gen_eval": 1.0}}
    for flag, published in (({}, 1.0), ({"geneval_only_strict": False}, 1.0), ({"geneval_only_strict": True}, 0.0)):
        scores = service.result(make_request("ab", media, **tags, **flag), "gen_eval")["scores"]
        assert set(scores) == {"gen_eval_score", "gen_eval_strict", "gen_eval_reward", "gen_eval_group"}
        assert scores["gen_eval_score"] == pytest.approx(media[..., 0].mean((1, 2)) / 255, rel=1e-6)
        assert scores["gen_eval_reward"] == [published] * 2
        assert scores["gen_eval_group"]["colors"] == [published, -10.0]
        assert scores["gen_eval_group"]["position"] == [-10.0, published]
        assert scores["gen_eval_group"]["counting"] == [-10.0, -10.0]


def test_the_other_endpoints(service):
    assert service.post("ping", info_data="{}")[:2] == (200, {"message": "Ping request received"})
    assert service.post("latent_attr", fields='{"fps": 16}')[0] == 200
    assert service.post("latent_attr", fields="{")[0] == 400
    for name, form in (("pull", {"type": "moody"}), ("ping", {"x": "y"}), ("push", {"uuid": "x"})):
        assert service.post(name, **form)[0] == 422
    assert service.get("/api/reward/pull")[0] in (401, 405)
    assert service.get("/healthz")[0] == 200


def test_get_is_405(service):
    connection = http.client.HTTPConnection("127.0.0.1", service.port)
    for name in ("enqueue", "pull", "ping", "push", "latent_attr"):
        connection.request("GET", f"/api/reward/{name}", headers={"Authorization": f"Bearer {service.token}"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 405
    connection.close()


def test_forms_may_be_multipart(service, make_request):
    _, answer, _ = service.post("enqueue", make_request("ab"))
    service.pulled(answer["uuid"])
    parts = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in (("uuid", answer["uuid"]), ("type", "moody"))
    )
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    assert service.post("pull", f"{parts}--x--\r\n".encode(), kind)[0] == 200


def test_a_pushed_result_counts_when_it_is_the_first(service, make_request):
    _, answer, _ = service.post("enqueue", make_request(["slow 0.5", "b"]))
    scores = json.dumps({"scores": {"moody": [1.0, 2.0]}})
    for wrong in ("{", '{"scores": {"moody": [1.0]}}', '{"scores": {"moody": [NaN, 1.0]}}', "[]"):
        assert service.post("push", uuid=answer["uuid"], type="moody", scores=wrong)[0] == 400
    assert service.post("push", uuid=answer["uuid"], type="moody", scores=scores)[0] == 200
    assert service.post("push", uuid=answer["uuid"], type="moody", scores=scores)[0] == 400
    service.result(make_request("ab"))  # the slow one is scored by now, and too late
    assert service.pulled(answer["uuid"])["scores"]["moody"] == [1.0, 2.0]
    assert service.post("push", uuid="unknown", type="moody", scores=scores)[0] == 400


def test_the_very_bytes_of_a_cosmos_rl_trainer(service, make_pictures):
    # What its client sends for pictures: json.dumps with its own order of keys, a newline, np.save; requests' headers.
    import io

    media = make_pictures(2)
    buffer = io.BytesIO()
    np.save(buffer, media, allow_pickle=False)
    head = {"prompts": ["a", "b"], "reward_fn": {"moody": 1.0}, "media_type": "image"}
    body = json.dumps(head).encode("utf-8") + b"\n" + buffer.getvalue()
    headers = {
        "User-Agent": "python-requests/2.32.3",
        "Accept-Encoding": "gzip, deflate",
        "Accept": "*/*",
        "Connection": "keep-alive",
        "Content-Type": "application/octet-stream",
        "Authorization": f"Bearer {service.token}",
    }
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)
    connection.request("POST", "/api/reward/enqueue", body, headers)
    answer = json.loads(connection.getresponse().read())
    form = f"uuid={answer['uuid']}&type=moody"
    headers |= {"Content-Type": "application/x-www-form-urlencoded", "X-Lepton-Replica-Target": answer["replica_id"]}
    status = 400
    while status == 400:
        connection.request("POST", "/api/reward/pull", form, headers)
        response = connection.getresponse()
        status, found = response.status, json.loads(response.read())
    connection.close()
    assert status == 200
    assert found["scores"]["moody"] == pytest.approx(media[..., 0].mean((1, 2)) / 255, rel=1e-6)


def test_the_keys_of_geneval():
    # Reference: the page: four keys, a column of the published verdict for each of six tags, -10 where the sample has
    # another. The parts are named as sanarl.rewards.scorers.geneval names them; what counts is the graded score.
    from sanarl.rewards.answers import keyed

    parts = {"gen_eval": [0.5, 0.25], "gen_eval/gen_eval_strict": [0.0, 0.0], "gen_eval/gen_eval_reward": [1.0, 0.0]}
    found = keyed("gen_eval", parts, [{"tag": "colors"}, {"tag": "position"}])
    groups = found.pop("gen_eval_group")
    assert found == {"gen_eval_reward": [1.0, 0.0], "gen_eval_strict": [0.0, 0.0], "gen_eval_score": [0.5, 0.25]}
    assert (groups["colors"], groups["position"]) == ([1.0, -10.0], [-10.0, 0.0])
    assert len(groups) == 6
    assert groups["counting"] == [-10.0, -10.0]
    assert keyed("ocr", {"ocr": [0.5]}, [{}]) == {"ocr_reward": [0.5]}
    assert keyed("mine", {"mine": [0.5], "mine/b": [1.0]}, [{}]) == {"mine": [0.5], "b": [1.0]}


def test_a_preset_unchanged(service, make_pictures):
    # Reference: the mean of the red channel; the service calls it pickscore, which the preset asks for.
    import torch

    from sanarl.config import load
    from sanarl.rewards.exchange import Addresses
    from sanarl.rewards.remote import RemoteScoring

    base = f"{service.url}/api/reward"
    settings = load("sana-image-nft").config.grpo.remote_reward
    media = make_pictures(5)
    with RemoteScoring(settings, Addresses((f"{base}/enqueue",), (f"{base}/pull",), service.token)) as scoring:
        scoring.check()
        scoring.submit(range(5), torch.from_numpy(media).permute(0, 3, 1, 2)[:, None] / 255, ["a"] * 5, [{}] * 5)
        scores = scoring.collect(20)
    assert scores.total.tolist() == pytest.approx(media[..., 0].mean((1, 2)) / 255, rel=1e-6)
    assert list(scores.parts) == ["pickscore"]
