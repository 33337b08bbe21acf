"""The examples of docs/datasets.md and docs/rewards.md, run as they stand."""

import inspect
import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch

from sanarl.config import load as load_config
from sanarl.data.module import load
from sanarl.rewards import TABLE, build
from sanarl.rewards.weights import ALIASES, needed

DOCS = Path(__file__).parents[2] / "docs"


def examples(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(autouse=True)
def _import_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_the_dataset_module(tmp_path):
    (source,) = examples("datasets.md", "python")
    (tmp_path / "my_pictures.py").write_text(source)
    module = load(str(tmp_path / "my_pictures.py"))
    sft, nft = load_config("tiny-image-sft").config, load_config("tiny-image-nft").config
    assert module.train(sft)[50]["media"].mean() == pytest.approx(0.25)  # half of a ramp's mean
    assert module.train(nft)[0]["metadata"] == {"wanted": 0.1}
    assert len(module.validation(sft)) == 1


def test_the_rewards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (source,) = examples("rewards.md", "python")
    Path("my_rewards.py").write_text(source)
    table, _ = examples("rewards.md", "toml")
    weights = tomllib.loads(table)["train"]["train_policy"]["reward_function"]
    assert build(weights).names == ["shapes", "spread"]
    mix = build({"my_rewards.py:spread": 0.5, "my_rewards.py:Brightness": 1.0})
    scores = mix(torch.full((2, 1, 3, 8, 8), 0.5), ["a", "b"], [{}, {"wanted": 0.1}])
    torch.testing.assert_close(scores.total, torch.tensor([1.0, 0.6]))
    assert list(scores.parts) == ["spread", "Brightness", "Brightness/mean"]


def scorer(name):
    module, _, attribute = TABLE[name].partition(":")
    return getattr(import_module(module), attribute)


def test_the_arguments_of_the_example_are_taken():
    _, table = examples("rewards.md", "toml")
    for name, given in tomllib.loads(table)["train"]["train_policy"]["reward_args"].items():
        assert set(given) <= set(inspect.signature(scorer(name)).parameters)


def test_every_reward_is_listed_with_its_arguments_and_weights():
    text = (DOCS / "rewards.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert all(f"| `{name}` |" in text for name in TABLE)
    for name in set(TABLE) - set(ALIASES) - {"shapes"}:
        wanted = list(inspect.signature(scorer(name)).parameters)
        after = lines[lines.index("## Arguments") :]
        (row,) = [line for line in after if line.startswith(f"| `{name}` |")]
        assert re.findall(r"`(\w+)`", row)[1:] == wanted
        assert all(one.repo in text and one.licence in text for one in needed(name))
