"""sanarl reward serve, score and bench as a person calls them."""

import json
import sys

import numpy as np
import pytest
from PIL import Image

from sanarl.cli import main


@pytest.fixture
def call(monkeypatch, capsys):
    """A function that runs a command and gives exit code, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["sanarl", "reward", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        found = capsys.readouterr()
        return ended.value.code or 0, found.out, found.err

    return run


@pytest.fixture
def pictures(tmp_path):
    """Two files, one all red and one of a third red, in different sizes."""
    for name, red, size in (("a.png", 255, (64, 64)), ("b.png", 85, (48, 80))):
        Image.fromarray(np.full((*size, 3), (red, 0, 0), np.uint8)).save(tmp_path / name)
    return tmp_path / "a.png", tmp_path / "b.png"


@pytest.fixture
def at(service, monkeypatch):
    """The environment of a trainer."""
    monkeypatch.setenv("REMOTE_REWARD_ENQUEUE_URL", f"{service.url}/api/reward/enqueue")
    monkeypatch.setenv("REMOTE_REWARD_FETCH_URL", f"{service.url}/api/reward/pull")
    monkeypatch.setenv("REMOTE_REWARD_TOKEN", service.token)


def test_score_here(call, pictures):
    code, out, err = call("score", pictures[0], "--prompt", "a red square", "--reward", "shapes")
    assert (code, err) == (0, "")
    assert out.startswith(f"{pictures[0]}  shapes 1.0000")
    assert "shapes/strict" in out


def test_score_by_a_service(call, pictures, at):  # noqa: ARG001
    names = ("--reward", "pickscore", "--reward", "moody")
    code, out, err = call("score", *pictures, "--prompt", "x", *names, "--remote", "--json")
    assert (code, err) == (0, "")
    scores = [{name: round(value, 4) for name, value in row["scores"].items()} for row in json.loads(out)]
    assert scores == [{"pickscore": red, "moody": red, "moody/count": 0.0} for red in (1.0, 0.3333)]
    code, out, err = call("score", pictures[0], "--prompt", "x", "--reward", "aesthetic", "--remote")
    assert (code, out) == (2, "")
    assert "'aesthetic' is not served here; this service has gen_eval, moody, pickscore" in err


def test_score_of_what_is_wrong(call, pictures, monkeypatch):
    monkeypatch.delenv("REMOTE_REWARD_ENQUEUE_URL", raising=False)
    for arguments, words in (
        (("--metadata", "{"), "--metadata: found '{'; accepted: a JSON object"),
        (("--metadata", "[]"), "--metadata: found '[]'; accepted: a JSON object"),
        (("--reward", "shaps"), "did you mean 'shapes'?"),
        (("--remote",), "REMOTE_REWARD_ENQUEUE_URL"),
    ):
        code, out, err = call("score", pictures[0], "--prompt", "x", *arguments)
        assert (code, out) == (2, "")
        assert words in err


def test_bench(call, at):  # noqa: ARG001
    small = ("--images", "2", "--size", "16", "--requests", "3", "--clients", "2", "--prompt", "x")
    code, out, _ = call("bench", "--reward", "pickscore", *small)
    assert code == 0
    assert out.startswith("3 requests of 2 pictures (0.0 MB), 2 clients")
    assert "latency p50" in out
    found = json.loads(call("bench", "--reward", "pickscore", *small, "--json")[1])
    assert (found["requests"], found["clients"], found["images"]) == (3, 2, 2)
    assert 0 < found["p50_s"] <= found["p95_s"] <= found["seconds"]


ONE = "[[reward_args]]\nreward_type = 'a'\n"
TWINS = "[[reward_args]]\nreward_type = 'a:b'\n[[reward_args]]\nreward_type = 'c:b'\n"
FILES = {
    "": "reward_args: missing; accepted at least one [[reward_args]] with a reward_type",
    f"port = 3\nhost = 1\n{ONE}": "rewards.toml:2: host: found 1; accepted a text that is not empty",
    ONE.replace("type", "tpye"): "rewards.toml:2: reward_args.0.reward_tpye: unknown key; did you mean reward_type?",
    f"{ONE}enable = false\n": "reward_args: none is switched on",
    TWINS: "rewards.toml:4: reward_args.1.reward_type: a:b and c:b are both called 'b'; give one another name",
    f"{ONE}[service]\nqueue_mb = 0\n": "rewards.toml:4: service.queue_mb: found 0; accepted a whole number, 1 or more",
    "port = \n": "rewards.toml:1:8: not valid TOML",
}


@pytest.mark.parametrize("text", FILES)
def test_a_file_that_is_wrong(call, tmp_path, text):
    file = tmp_path / "rewards.toml"
    file.write_text(text)
    code, out, err = call("serve", "--config", file)
    assert (code, out) == (2, "")
    assert FILES[text] in err


def test_the_file_of_cosmos_rl_is_accepted(tmp_path):
    from sanarl.rewards.server.settings import load

    file = tmp_path / "rewards.toml"
    file.write_text(
        'host="localhost"\nport=8080\nredis_host="localhost"\nredis_port=6379\nno_latent_decoder = true\n'
        '[[reward_args]]\nreward_type = "dance_grpo"\nvenv_python = "/root/dance_grpo/bin/python"\n'
        'model_path = "/workspace/VideoReward"\ndownload_path = "/workspace"\ndtype = "float16"\nenable = true\n'
        'setup_script = "x.sh"\nwork_dir = "w"\ntmp_dir = "/tmp"\n'
        '[[reward_args]]\nreward_type = "unified_reward"\nendpoint_url = "U"\nendpoint_api_key = "K"\nenable = false\n'
        '[decode_args]\nmodel_path = "Wan2.1_VAE.pth"\ndtype = "bfloat16"\ndevice = "cuda"\nchunk_duration = 81\n'
        'temporal_window = 16\nload_mean_std = false\nwan2pt2_model_path = ""\nwan2pt2_credential_path = ""\n'
    )
    found = load(file, port=0)
    assert [one.label for one in found.scorers] == ["dance_grpo"]
    assert found.scorers[0].options == {
        "model_path": "/workspace/VideoReward",
        "download_path": "/workspace",
        "dtype": "float16",
    }
    assert (found.port, found.redis_host, found.decode_args.dtype) == (0, "localhost", "bfloat16")


@pytest.mark.parametrize("options", [(), ("--nproc", "2"), ("--dry-run",)])
def test_a_run_that_knows_no_service_ends_before_anything_is_loaded(options, monkeypatch, capsys, tmp_path):
    for name in ("REMOTE_REWARD_ENQUEUE_URL", "REMOTE_REWARD_FETCH_URL", "REMOTE_REWARD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    module = tmp_path / "prompts.py"
    module.write_text(f"open({str(tmp_path / 'loaded')!r}, 'w')\n")
    out = f"train.output_dir={tmp_path / 'out'}"
    monkeypatch.setattr(
        sys, "argv", ["sanarl", "train", "--config", "sana-image-nft", str(module), "--set", out, *options]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert all(f"REMOTE_REWARD_{name}" in err for name in ("ENQUEUE_URL", "FETCH_URL", "TOKEN"))
    assert "or a url for every entry of remote_reward.reward_fns" in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == [module]


def test_a_run_whose_service_is_down_ends_before_its_model_is_loaded(monkeypatch, capsys, tmp_path):
    # Reference: nobody listens on port 9; the model of the preset is not on this machine, and nobody asks for it.
    monkeypatch.setenv("REMOTE_REWARD_TOKEN", "a token of ours")
    fns = "train.train_policy.remote_reward"
    sets = [f"train.output_dir={tmp_path / 'out'}", f"{fns}.patience_s=0.2"]
    sets += [f'{fns}.reward_fns=[{{name="pickscore", url="http://127.0.0.1:9/api/reward"}}]']
    module = tmp_path / "prompts.py"
    module.write_text("def get_dataset(config):\n    return [{'prompt': 'a', 'metadata': {}}] * 48\n")
    words = [word for one in sets for word in ("--set", one)]
    monkeypatch.setattr(sys, "argv", ["sanarl", "train", "--config", "sana-image-nft", str(module), *words])
    with pytest.raises(SystemExit) as ended:
        main()
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert "reward service http://127.0.0.1:9/api/reward/enqueue does not answer (ConnectError" in err
    assert "a token of ours" not in err
    assert not (tmp_path / "out").exists()
