import json
from importlib.metadata import version

import torch

from sanarl.runtime import records
from sanarl.runtime.folder import RunFolder
from sanarl.runtime.records import RewardLog
from sanarl.runtime.world import World

GROUPS = torch.tensor([0, 0, 2, 2, 2])
SCORES = {"reward": torch.tensor([1.0, 3.0, 2.0, 2.0, 5.0]), "shapes": torch.tensor([1.0, 3.0, 2.0, 2.0, 5.0])}


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_rewards_of_a_step(tmp_path):
    # Reference: by hand: groups {1, 3} and {2, 2, 5}, population deviations 1 and sqrt(2).
    log = RewardLog(tmp_path / "rewards.jsonl")
    log.write(1, "train", ["a", "b", "ç"], GROUPS, SCORES)
    log.write(2, "eval", ["ç", "b", "d"], GROUPS, SCORES | {"ocr": torch.zeros(5)})
    first, second = lines(log.path)
    assert first == {
        "step": 1,
        "of": "train",
        "prompt": [0, 1],
        "size": [2, 3],
        "mean": [2.0, 3.0],
        "std": [1.0, 1.41421],
        "new": {"0": "a", "1": "ç"},
    }
    assert (second["prompt"], second["new"]) == ([1, 2], {"2": "d"})
    assert second["parts"] == {"shapes": [2.0, 3.0], "ocr": [0.0, 0.0]}


def test_equal_prompts_are_one(tmp_path):
    # Reference: by hand: rows of groups 0 and 2 are one prompt's: 1, 3, 2, 2, 5.
    log = RewardLog(tmp_path / "rewards.jsonl")
    log.write(0, "eval", ["a", "b", "a"], GROUPS, SCORES)
    (line,) = lines(log.path)
    assert (line["prompt"], line["size"], line["mean"], line["new"]) == ([0], [5], [2.6], {"0": "a"})


def test_numbers_of_prompts_outlive_a_resume(tmp_path):
    # Reference: the numbers that the lines kept name; a prompt whose line was cut is new again.
    folder = RunFolder(tmp_path)
    before = RewardLog(folder.rewards)
    before.write(1, "train", ["a", "", "b"], GROUPS, SCORES)
    before.write(2, "train", ["c", "", "d"], GROUPS, SCORES)
    with open(folder.rewards, "a", encoding="utf-8") as file:
        file.write('{"step": 3, "of"')
    folder.cut_records(1)
    RewardLog(folder.rewards).write(2, "train", ["d", "", "a"], GROUPS, SCORES)
    first, second = lines(folder.rewards)
    assert (first["prompt"], first["new"]) == ([0, 1], {"0": "a", "1": "b"})
    assert (second["prompt"], second["new"]) == ([2, 0], {"2": "d"})


def test_starts_and_ends_are_noted(tmp_path):
    folder = RunFolder(tmp_path)
    records.started(folder, World(), 0, 60)
    records.ended(folder, 20, "SIGTERM")
    records.started(folder, World(), 20, 60)
    events = lines(tmp_path / "events.jsonl")
    assert [(event["event"], event["step"]) for event in events] == [("start", 0), ("end", 20), ("start", 20)]
    assert events[0]["total"] == 60
    assert events[0]["device"] == "1 x cpu"
    assert events[0]["packages"]["torch"] == version("torch")
    assert events[1]["why"] == "SIGTERM"


def test_ending_where_nothing_can_be_written_hides_no_error(tmp_path):
    records.ended(RunFolder(tmp_path / "gone"), 1, "OSError")
