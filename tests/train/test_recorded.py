"""What a run records for its report, against its metrics."""

import json
from pathlib import Path

import pytest

from sanarl.report.document import document
from sanarl.report.names import METRICS, described
from sanarl.report.reading import read


def rewards(run):
    text = (run.folder / "rewards.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def mean(line):
    return sum(m * n for m, n in zip(line["mean"], line["size"], strict=True)) / sum(line["size"])


def test_rewards_of_prompts_add_up_to_the_metrics(baseline):
    # Reference: metrics.jsonl; means weighted by their samples, kept to six digits.
    run = baseline("nft")
    metrics = {line["step"]: line for line in run.metrics}
    found = rewards(run)
    assert [(line["step"], line["of"]) for line in found] == [
        *[(0, "eval"), (1, "train"), (2, "train"), (2, "eval"), (3, "train"), (4, "train"), (4, "eval")]
    ]
    for line in found:
        name = "reward/mean" if line["of"] == "train" else "eval/reward"
        assert mean(line) == pytest.approx(metrics[line["step"]][name], rel=1e-5)
        if line["of"] == "train":
            assert sum(line["std"]) / len(line["std"]) == pytest.approx(
                metrics[line["step"]]["reward_std_mean"], rel=1e-5
            )
            assert sum(line["size"]) == 12
    texts = [text for line in found for text in line.get("new", {}).values()]
    assert len(texts) == len(set(texts)) == len({n for line in found for n in line["prompt"]})


def test_a_resumed_run_records_what_an_uninterrupted_one_does(train, baseline, monkeypatch):
    # Reference: the uninterrupted run's lines; a step that is made again does not stand there twice.
    stopping = str(Path(__file__).parent / "stopping.py")
    monkeypatch.setenv("STOP_AT", "8 SIGTERM")  # in the third step, which takes items 7 to 9
    stopped = train("nft", module=stopping)
    assert read(stopped.folder).state() == ("stopped", "stopped after 3 of 4 steps: SIGTERM")
    monkeypatch.delenv("STOP_AT")
    run = train("nft", module=stopping, resume=str(stopped.folder / "checkpoints" / "step_2"))
    assert rewards(run) == rewards(baseline("nft"))
    events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    assert [(event["event"], event["step"]) for event in events] == [("start", 0), ("end", 3), ("start", 2), ("end", 4)]
    assert events[-1]["why"] == "finished"
    assert [line["step"] for line in read(run.folder).lines] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("task", ["nft", "awm", "flowgrpo", "sft", "sft-lora"])
def test_every_metric_of_a_run_is_documented(baseline, task):
    found = {name for line in baseline(task).metrics for name in line}
    assert {name for name in found if not described(name)} == set()
    assert found & set(METRICS) >= {"step", "loss", "grad_norm", "lr"}


def test_a_run_is_reported(baseline):
    run = baseline("nft")
    found = document([run.folder])["runs"][0]
    assert (found["state"], found["state_text"]) == ("finished", "finished: 4 of 4 steps")
    assert found["notes"] == []
    assert found["gallery"]["steps"] == [0, 2, 4]
    assert all(data.startswith("data:image/webp;base64,") for row in found["gallery"]["pictures"] for data in row)
    assert found["held_out"][0][0] == 0
    assert set(found["band"]) == {"prompts", "samples", "error"}
    environment = {row["name"] for row in document([run.folder])["environment"]["rows"]}
    assert {"device", "python", "torch", "command"} <= environment
