"""docs/reward_service.md and its examples."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from sanarl.rewards.server.settings import DecodeArgs, RewardArgs, Service, Settings, load

HERE = Path(__file__).parent
DOCS = HERE.parents[2] / "docs"
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


def test_the_quickstart_says_the_same():
    text = (DOCS / "quickstart.md").read_text(encoding="utf-8")
    section = text[text.index("## A reward service") : text.index("## Stop and go on")]
    assert re.findall(r"```toml\n(.*?)```", section, re.S) == re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    for pattern in (r"    (sanarl train .*?)\n\n", r"    (sanarl reward serve .*)", r"    (export .*)"):
        assert re.findall(pattern, section, re.S if "train" in pattern else 0) == re.findall(
            pattern, PAGE, re.S if "train" in pattern else 0
        )


EXAMPLES = DOCS / "examples" / "reward_service"
UNIT = EXAMPLES / "sanarl-reward.service"


def test_the_unit():
    # Reference: the service's own limits.
    text = UNIT.read_text()
    keys = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    words = shlex.split(keys["ExecStart"])
    assert words[1:] == ["reward", "serve", "--config", "/etc/sanarl/rewards.toml"]
    assert float(keys["TimeoutStopSec"]) > Service().drain_s
    assert keys["RestartPreventExitStatus"] == "2"  # what a person must mend


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine is not run by systemd")
def test_systemd_accepts_the_unit(tmp_path):
    # Reference: systemd's own check; the program of the unit is not on this machine.
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text()))
    found = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.slow
def test_the_compose_file(make_service, redis_server):
    # Its commands run as they stand, with this machine's addresses; sizes and times fit those of the service.
    compose = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())
    reward, redis, front = (compose["services"][name] for name in ("reward", "redis", "front"))
    limits = Service()
    assert float(reward["stop_grace_period"].removesuffix("s")) > limits.drain_s
    assert float(reward["shm_size"].removesuffix("gb")) * 1e9 > limits.queue_mb * 1e6
    nginx = compose["configs"]["front"]["content"]
    assert "client_max_body_size 1g;" in nginx
    assert limits.max_request_mb * 1e6 <= 2**30
    assert front["configs"][0]["source"] == "front"
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    recipe = reward["build"]["dockerfile_inline"]
    assert (EXAMPLES / reward["build"]["context"]).resolve() == DOCS.parent
    extras = re.search(r'-c /sanarl/(\S+) "/sanarl\[(.*?)\]"', recipe)
    assert (DOCS.parent / extras[1]).is_file()
    assert set(extras[2].split(",")) <= set(project["optional-dependencies"])
    words = shlex.split(reward["command"])
    assert words == ["sanarl", "reward", "serve", "--config", reward["volumes"][0].split(":")[1]]
    assert shlex.split(redis["command"]) == ["redis-server", "--save", "", "--appendonly", "no"]

    mounted = (EXAMPLES / reward["volumes"][0].split(":")[0]).read_text()
    for old, new in (
        ('host = "0.0.0.0"', 'host = "127.0.0.1"'),
        ('redis_host = "redis"', 'redis_host = "127.0.0.1"'),
        ("redis_port = 6379", f"redis_port = {redis_server.port}"),
        ('reward_type = "pickscore"\ndevice = "cuda:0"', f'reward_type = "{HERE / "scorers.py"}:redness"'),
    ):
        assert mounted.count(old) == 1, old
        mounted = mounted.replace(old, new)
    service = make_service(ready=False)
    service.process.kill()
    service.process.wait()
    service.file.write_text(mounted)
    service.start()
    service.ready()
    kind, *check = reward["healthcheck"]["test"]
    assert (kind, check[0]) == ("CMD", "python")
    looked = [sys.executable, *(word.replace(":8080", f":{service.port}") for word in check[1:])]
    assert subprocess.run(looked, timeout=30).returncode == 0
    assert service.stop() == 0
    assert subprocess.run(looked, timeout=30, capture_output=True).returncode != 0


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
    short = ["train.max_num_steps=1", "validation.enable=false", "guards.enable=false"]
    short += ["train.train_batch_per_replica=16"]
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
