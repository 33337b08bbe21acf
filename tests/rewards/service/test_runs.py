"""Tiny NFT runs whose rewards a service scores: the trajectory is that of local scoring, whatever dies in between."""

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sanarl.rewards.mix import RewardError

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SERVED = """
[[reward_args]]
reward_type = "SCORERS:sluggish"
name = "redness"
device = "cpu"
"""
RUN = """
[policy]
model_name_or_path = "MODEL"
is_diffusers = true
model_gradient_checkpointing = false
[policy.lora]
lora_names = ["default", "old"]
r = 4
lora_alpha = 8
target_modules = ["attn1.to_q", "attn1.to_v", "attn2.to_q", "attn2.to_v", "attn2.to_out.0"]
[policy.diffusers]
offload = false
max_prompt_length = 12
inference_size = [32, 32]
timesteps_fraction = 0.7
weight_copy_decay_type = 1
[policy.diffusers.sample]
num_steps = 3
eval_num_steps = 3
guidance_scale = 1.0
global_std = false
[rollout]
n_generation = 4
[train]
output_dir = "OUTPUT"
epoch = 10
max_num_steps = 5
param_dtype = "float32"
optm_impl = "foreach"
optm_lr = 1e-2
epsilon = 1e-3
train_batch_per_replica = 12
[train.ckpt]
enable_checkpoint = true
save_freq = 100
export_safetensors = false
[train.train_policy]
type = "grpo"
trainer_type = "diffusion_nft"
mini_batch = 5
dataset.name = "shapes"
REWARDS
[validation]
enable = true
freq = 2
num_prompts = 3
dataset.name = "shapes"
[guards]
enable = false  # killing.py counts the items of steps
[logging]
logger = []
"""
LOCAL = 'reward_function = { "SCORERS:redness" = 1.0 }'
REMOTE = """
use_remote_reward = true
[train.train_policy.remote_reward]
batch_size = 3
deadline_s = 20.0
patience_s = PATIENCE
reward_fns = [{ name = "redness" }]
"""


@pytest.fixture
def go(tmp_path, pipeline_folder, monkeypatch):
    """A function that runs TOML into a folder of that name and gives its metrics without times, and its log."""
    from sanarl.config import load
    from sanarl.training import run

    def one(rewards, into, services=(), kill="0 0 0", resume="never", patience=30.0, ranks=None):
        monkeypatch.setenv("KILL", kill)
        monkeypatch.setenv("REMOTE_REWARD_TOKEN", services[0].token if services else "")
        for name, last in (("ENQUEUE", "enqueue"), ("FETCH", "pull")):
            urls = ",".join(f"{s.url}/api/reward/{last}" for s in services)
            monkeypatch.setenv(f"REMOTE_REWARD_{name}_URL", urls)
        text = RUN.replace("REWARDS", rewards).replace("PATIENCE", str(patience)).replace("MODEL", str(pipeline_folder))
        file = tmp_path / f"{into}.toml"
        file.write_text(text.replace("OUTPUT", str(tmp_path / into)).replace("SCORERS", str(HERE / "scorers.py")))
        module = str(HERE / "killing.py")
        try:
            if ranks is not None:
                command = [sys.executable, "-m", "sanarl", "train", "--config", file, module, "--nproc", str(ranks)]
                one.ended = subprocess.run(command, capture_output=True, text=True, timeout=200)
            else:
                assert run.run(load(file), module, resume).exit_code == 0
        finally:
            (folder,) = (tmp_path / into).iterdir()
            one.log = (folder / "log.txt").read_text(encoding="utf-8")
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
            # The weighted sum of rewards in this process is reported as avg as well.
            left_out = ("time/", "reward/avg", "eval/avg")
            one.metrics = [{k: v for k, v in line.items() if not k.startswith(left_out)} for line in lines]
        return one.metrics

    return one


@pytest.fixture
def serve(make_service):
    """A function that starts services that take 0.2 s a request."""

    def start(count=1, **options):
        started = [make_service((), ready=False, after=SERVED, **options) for _ in range(count)]
        return [one.ready() for one in started]

    return start


def test_two_replicas_one_killed_in_the_middle(go, serve, redis_server):
    # Reference: the same run with the reward in its own process; exactly, for the scorer sums whole numbers.
    local = go(LOCAL, "local")
    services = serve(2, head=redis_server.head, lease_s=1.0)
    kill = f"7 {services[0].process.pid} 0.15"  # in the middle, with its requests on their way
    assert go(REMOTE, "remote", services, kill) == local
    assert len(local) == 5
    assert "eval/reward" in local[1]
    assert services[0].process.wait(10) == -9
    assert services[1].process.poll() is None


def test_a_service_that_restarts_in_the_middle_is_waited_for(go, serve):
    local = go(LOCAL, "local")
    (service,) = serve()

    def bring_back():
        service.process.wait()
        time.sleep(1)
        service.start()

    waiting = threading.Thread(target=bring_back)
    waiting.start()
    assert go(REMOTE, "remote", [service], f"7 {service.process.pid} 0.15") == local
    waiting.join()
    said = [line for line in go.log.splitlines() if "reward service" in line]
    assert len([line for line in said if "does not answer" in line]) == 1, said
    assert len([line for line in said if "answers again" in line]) == 1, said


def test_a_service_that_stays_away_ends_the_run_which_saves_and_can_go_on(go, serve):
    local = go(LOCAL, "local")
    (service,) = serve()
    with pytest.raises(RewardError, match=r"reward service http://\S+ did not .* last: .*") as caught:
        go(REMOTE, "remote", [service], f"12 {service.process.pid} 0.05", patience=1.0)
    assert caught.value.exit_code == 1
    done = go.metrics[-1]["step"]
    assert 2 <= done <= 4
    assert re.search(rf"saved \S+/step_{done}\n", go.log)
    assert f"stopped after step {done} of 5" in go.log
    service.process.wait()
    service.start()
    service.ready()
    assert go(REMOTE, "remote", [service], resume="auto") == local
    assert "resumed" in go.log


def test_two_ranks_end_together_when_the_service_dies(go, serve):
    # Each rank sends half of the samples and hears of the death by itself. Reference for what follows the resume: the
    # run of one rank with the reward in its own process, up to the rounding of sums in another order.
    local = go(LOCAL, "local")
    (service,) = serve()
    go(REMOTE, "remote", [service], f"8 {service.process.pid} 0.05", patience=1.0, ranks=2)
    assert go.ended.returncode == 1, go.ended.stderr
    assert "did not take a request" in go.ended.stderr or "did not answer" in go.ended.stderr
    assert "Traceback" not in go.ended.stderr
    done = go.metrics[-1]["step"]
    assert 1 <= done <= 3
    assert re.search(rf"saved \S+/step_{done}\n", go.log)
    assert f"stopped after step {done} of 5" in go.log
    service.process.wait()
    service.start()
    service.ready()
    for mine, theirs in zip(go(REMOTE, "remote", [service], resume="auto"), local, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-6)
