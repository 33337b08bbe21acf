"""docs/reward_service.md and its examples."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from sanarl.rewards.server.settings import DecodeArgs, RewardArgs, Service, Settings, load

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "reward_service.md").read_text(encoding="utf-8")


def test_every_key_is_on_the_page():
    named = re.findall(r"`([^`]*)`", PAGE)
    words = {word.lstrip(".") for text in named for word in re.split(r"[ ,]+", text)}
    words |= {word.rpartition(".")[2] for word in words}
    for table in (Settings, RewardArgs, DecodeArgs, Service):
        missing = [key for key in table.model_fields if key not in words | {"reward_args", "decode_args", "service"}]
        assert missing == [], table


def test_defaults_are_those_of_the_page():
    limits = Service()
    for names, values in re.findall(r"^\| ((?:`[a-z_.]+`(?:, )?)+) \| ([0-9., ]+) \|", PAGE, re.M):
        keys = [name.strip("`").rpartition(".")[2] for name in names.split(", ")]
        for key, value in zip(keys, values.split(", "), strict=True):
            assert getattr(limits, key) == float(value), key


def test_the_example_files_are_read(tmp_path):
    assert [one.label for one in load(DOCS / "examples/reward_service/rewards.toml").scorers] == ["pickscore", "shapes"]
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    (tmp_path / "rewards.toml").write_text(text)
    assert load(tmp_path / "rewards.toml").port == 8080
    assert tomllib.loads(text)["reward_args"] == [{"reward_type": "shapes"}]


@pytest.mark.slow
def test_the_commands_of_the_page(make_service, tmp_path, monkeypatch, capsys):
    # Reference: one step with the reward in the run's own process; pictures are rounded to 8 bits by that reward too.
    import json

    from sanarl.config import load as load_config
    from sanarl.training import run

    service = make_service(("shapes",))
    monkeypatch.setenv("REMOTE_REWARD_TOKEN", service.token)
    monkeypatch.setenv("REMOTE_REWARD_ENQUEUE_URL", f"{service.url}/api/reward/enqueue")
    monkeypatch.setenv("REMOTE_REWARD_FETCH_URL", f"{service.url}/api/reward/pull")
    (command,) = re.findall(r"(sanarl train .*?)\n\n", PAGE, re.S)
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:4] == ["sanarl", "train", "--config", "tiny-image-nft.toml"]
    remote = [word for word in words[4:] if word != "--set"]
    short = ["train.max_num_steps=1", "validation.enable=false", "train.train_batch_per_replica=16"]
    short += ["train.train_policy.batch_size_per_optimize=16"]
    metrics = []
    for into, overrides in (("remote", remote), ("local", [])):
        out = tmp_path / into
        loaded = load_config("tiny-image-nft", [*short, f'train.output_dir="{out}"', *overrides])
        assert run.run(loaded, None, "never").exit_code == 0
        (line,) = map(json.loads, next(out.glob("*/metrics.jsonl")).read_text().splitlines())
        metrics.append({key: value for key, value in line.items() if not key.startswith("time/")})
    metrics[1].pop("reward/avg")  # of rewards in this process alone
    assert metrics[0] == metrics[1]
    capsys.readouterr()
