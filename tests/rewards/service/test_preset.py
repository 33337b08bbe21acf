"""tiny-image-nft by rewards of this process, by a stand-in service of the protocol, and presets against our own."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch

from sanarl.config import load
from sanarl.rewards import answers, build
from sanarl.training import run

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SHORT = [
    "train.max_num_steps=2",
    "train.train_batch_per_replica=8",
    "train.train_policy.batch_size_per_optimize=4",
    "rollout.n_generation=4",
    "validation.enable=false",
    "policy.diffusers.sample.num_steps=4",
    "train.ckpt.export_safetensors=false",
    "guards.enable=false",
]


@pytest.fixture
def go(tmp_path):
    """A function that runs a preset into a folder of that name: its metrics, its learner, its log, its folder."""

    def one(preset, into, *overrides, module=None):
        out = tmp_path / into
        assert run.run(load(preset, [f'train.output_dir="{out}"', *overrides]), module, "never").exit_code == 0
        (folder,) = out.iterdir()
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        metrics = [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]
        (state,) = folder.glob("checkpoints/*/state.pt")
        learner = torch.load(state, weights_only=True)["policy"]["sets"]["learner"]
        return metrics, learner, (folder / "log.txt").read_text(), folder

    return one


@pytest.fixture
def peer():
    """A stand-in service: the protocol by peer.py, the scores by the scorers that are tested elsewhere."""
    spec = importlib.util.spec_from_file_location("reward_peer", HERE / "peer.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    scorers = {"shapes": build({"shapes": 1.0}), "ocr": build({"ocr": 1.0}, {"ocr": {"threads": 1}})}

    def score(name):
        def scores(head, media):
            pictures = torch.from_numpy(media).permute(0, 3, 1, 2)[:, None] / 255
            found = scorers[name](pictures, head["prompts"], [{}] * len(media)).parts
            parts = {part: values.tolist() for part, values in found.items()}
            return answers.keyed(name, parts, [{}] * len(media))

        return scores

    one = module.Peer({name: score(name) for name in scorers})
    yield one
    one.close()


def test_shapes_and_ocr_give_the_same_run_here_and_by_a_service(go, peer, monkeypatch):
    # Reference: the run with both rewards in its own process, every number and every trained value, bit by bit.
    for name in ("ENQUEUE", "FETCH"):
        monkeypatch.delenv(f"REMOTE_REWARD_{name}_URL", raising=False)
    monkeypatch.setenv("REMOTE_REWARD_TOKEN", "a token of the run")
    module = str(HERE / "quoted.py")
    here = [
        "train.train_policy.reward_function={shapes=1.0, ocr=0.5}",
        "train.train_policy.reward_args={ocr={threads=1}}",
    ]
    local, mine, log, _ = go("tiny-image-nft", "local", *SHORT, *here, module=module)
    assert re.search(r"reward ocr: \(2,\), 0\.\d+ to \S+, \d+\.\d\d s for media \(2, 1, 3, 64, 64\)\n", log)
    functions = f'[{{name="shapes", url="{peer.url}"}}, {{name="ocr", weight=0.5, url="{peer.url}"}}]'
    by = "train.train_policy.remote_reward"
    there = ["train.train_policy.use_remote_reward=true", f"{by}.reward_fns={functions}", f"{by}.batch_size=3"]
    remote, theirs, log, folder = go("tiny-image-nft", "remote", *SHORT, *there, module=module)
    assert [line.pop("reward/avg") for line in local] == pytest.approx([line["reward/mean"] for line in local])
    assert remote == local
    assert len(local) == 2
    assert 0 < local[0]["reward/shapes"] < 1
    assert 0 < local[0]["reward/ocr"] < 1
    assert local[0]["reward_std_mean"] > 0
    assert all(torch.equal(mine[name], value) for name, value in theirs.items())
    # 2 of the trial before the run, then 16 samples in requests of 3 and fewer.
    assert [len(head["prompts"]) for head, _ in peer.requests][:1] == [2]
    assert sum(len(head["prompts"]) for head, _ in peer.requests) == 2 + 16
    for name in ("shapes", "ocr"):
        assert re.search(
            rf"reward {name}: \(2,\), \S+ to \S+, \S+ s for media \(2, 1, 3, 64, 64\), by a service\n", log
        )
    assert re.search(r"reward shapes/strict: \(2,\), 0 to 0\n", log)
    assert peer.headers[0]["Authorization"] == "Bearer a token of the run"
    for file in folder.rglob("*"):
        assert file.is_dir() or b"a token of the run" not in file.read_bytes(), file


def test_sana_image_nft_as_it_stands_by_our_service(go, service, tmp_path, monkeypatch):
    # Reference: what the service counted. The preset's file is untouched, a small model and a smaller step stand in by
    # --set; the service's pickscore is the mean of the red channel, half of a ramp's.
    for name, last in (("ENQUEUE", "enqueue"), ("FETCH", "pull")):
        monkeypatch.setenv(f"REMOTE_REWARD_{name}_URL", f"{service.url}/api/reward/{last}")
    monkeypatch.setenv("REMOTE_REWARD_TOKEN", service.token)
    prompts = tmp_path / "pickscore"
    prompts.mkdir()
    for split in ("train", "test"):
        (prompts / f"{split}.txt").write_text("a red circle\na blue square\n")
    small = ["policy.model_name_or_path='tiny-image'", "policy.diffusers.inference_size=[64, 64]", "logging.logger=[]"]
    small += ["policy.diffusers.max_prompt_length=12", "train.param_dtype='float32'", "train.max_num_steps=2"]
    small += [
        "guards.enable=false",
        "train.train_batch_per_replica=4",
        "rollout.n_generation=2",
        "policy.diffusers.dtype='float32'",
    ]
    small += [f"train.train_policy.dataset.local_dir='{prompts}'"]
    before = service.get("/metrics")[1]
    metrics, _, log, _ = go("sana-image-nft", "sana", *small)
    assert [line["step"] for line in metrics] == [1, 2]
    assert all(0 < line["reward/pickscore"] < 1 and line["reward_std_mean"] > 0 for line in metrics)
    assert re.search(
        r"reward pickscore: \(2,\), 0\.5 to 0\.5, \S+ s for media \(2, 1, 3, 64, 64\), by a service\n", log
    )

    def scored(text):
        found = re.search(r'sanarl_reward_scored_total\{reward="pickscore"\} (\d+)', text)
        return int(found[1]) if found else 0

    assert scored(service.get("/metrics")[1]) - scored(before) == 2 + 2 * 4  # the trial, and two steps of four
