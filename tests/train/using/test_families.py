"""Runs of SD3.5 and FLUX.1 from the file to the export: every task through the same loops."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from diffusers import DiffusionPipeline
from safetensors.torch import load_file

FAMILIES = {
    "sd3": ["attn.to_q", "attn.to_v", "attn.to_out.0", "attn.add_q_proj", "attn.to_add_out"],
    "flux": ["to_q", "to_k", "to_v", "to_out.0"],
}
TASKS = ("sft", "sft-lora", "nft", "flowgrpo")
CACHE = "data.cache"


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folder(family, random_family, tmp_path_factory):
    """The family's smallest pipeline, saved as diffusers does."""
    path = tmp_path_factory.mktemp("pipelines") / family
    random_family(family).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def runs(family, folder, toml, run_text, tmp_path_factory):
    """task -> a Run of two steps, made when first asked for."""
    parent, made = tmp_path_factory.mktemp(f"runs-{family}"), {}

    def go(task):
        if task not in made:
            place = parent / task
            keys = [f"policy.model_name_or_path={folder}", "train.max_num_steps=2", "train.ckpt.save_freq=1"]
            keys += ["policy.diffusers.sample.guidance_scale=3.5"] if task != "nft" else []
            if task != "sft":
                keys.append(f"policy.lora.target_modules={json.dumps(FAMILIES[family])}")
            if task == "nft":
                keys += ["rollout.engine.mode=emulated_fp8", "rollout.engine.min_dim=0", "logging.report_mfu=true"]
                keys += ['rollout.engine.skip_modules=["norm", "embed"]', "rollout.n_candidates=6"]
                keys += ['policy.memory_plan="auto"']
            if task == "sft-lora":
                keys.append(f"{CACHE}={parent / 'cache'}")
            made[task] = run_text(toml(task, place), place, *keys)
        return made[task]

    return go


@pytest.mark.parametrize("task", TASKS)
def test_every_task_trains_and_leaves_what_diffusers_loads(runs, folder, task):
    # Reference: the moving average of the checkpoint, bit by bit.
    run = runs(task)
    assert run.code == 0
    assert [line["step"] for line in run.metrics] == [0, 1, 2]
    assert all(math.isfinite(line["loss"]) and line["grad_norm"] > 0 for line in run.metrics[1:])
    assert run.metrics[0]["eval/avg"] != run.metrics[2]["eval/avg"]
    place, state = run.folder / "safetensors" / "step_2", run.state(2)
    if task == "sft":
        found = {n: p.detach() for n, p in DiffusionPipeline.from_pretrained(place).transformer.named_parameters()}
    else:
        found = load_file(place / "pytorch_lora_weights.safetensors")
        pipeline = DiffusionPipeline.from_pretrained(folder)
        pipeline.load_lora_weights(place)
        assert len(found) == 2 * sum(".lora_A." in name for name, _ in pipeline.transformer.named_parameters())
    averages = sorted(key for key in state if key.startswith("/ema/") and isinstance(state[key], torch.Tensor))
    assert len(averages) == len(found) > 0
    ours = sorted(float(state[key].double().sum()) for key in averages)
    theirs = sorted(float(value.double().sum()) for value in found.values())
    assert ours == pytest.approx(theirs, abs=1e-6)
    assert any(value.abs().max() > 0 for value in found.values())


def test_latents_and_embeddings_are_read_from_the_cache(runs, toml, run_text, tmp_path, family, folder):
    # Reference: the run that filled it; the pooled embedding is kept with the tokens.
    before = runs("sft-lora")
    cache = before.folder.parents[1] / "cache"
    keys = [f"policy.model_name_or_path={folder}", "train.max_num_steps=2", "train.ckpt.save_freq=1"]
    keys += ["policy.diffusers.sample.guidance_scale=3.5", f"{CACHE}={cache}"]
    keys.append(f"policy.lora.target_modules={json.dumps(FAMILIES[family])}")
    files = {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
    again = run_text(toml("sft-lora", tmp_path / "again"), tmp_path / "again", *keys)
    assert [line["loss"] for line in again.metrics[1:]] == [line["loss"] for line in before.metrics[1:]]
    assert files == {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
    assert len(files) > 2


def test_commands_take_a_run_and_a_model(runs, family, folder, sanarl, tmp_path):
    run = runs("nft")
    done = sanarl("sample", "--run", run.folder, "--prompt", "a red circle", "--out", tmp_path / "a", "--compare")
    assert done.code == 0, done.err
    assert len(list((tmp_path / "a").rglob("*.png"))) >= 3
    asked = ("--model", folder, "--prompt", "a red circle", "--size", "32x32", "--steps", "2", "--out", tmp_path / "b")
    done = sanarl("sample", *asked)
    assert done.code == 0, done.err
    for target in ("diffusers", "peft"):
        done = sanarl("export", run.folder, "--to", target, "--step", "last", "--out", tmp_path / target)
        assert done.code == 0, done.err
    card = (tmp_path / "diffusers" / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert "resolution_binning" not in code
    scope = {}
    exec(code.replace("PATH", str(tmp_path / "diffusers")).replace('"picture.png"', f'"{tmp_path / "p.png"}"'), scope)
    assert (tmp_path / "p.png").is_file()
    assert type(scope["pipe"]).__name__ == {"sd3": "StableDiffusion3Pipeline", "flux": "FluxPipeline"}[family]


def test_memory_is_predicted_from_the_familys_own_shapes(runs):
    # Reference: the transformer's parameters at 4 bytes; everything else is the family's own pass on shapes alone.
    told = json.loads((runs("nft").folder / "memory.json").read_text(encoding="utf-8"))
    assert told["memory_plan"] == "auto"
    held, phases = told["predicted"]["held"], told["predicted"]["phases"]
    assert held["transformer"] > 4 * 24_000
    assert (
        min(phases[name] for name in ("training pass", "rollout: sampling", "rollout: decoding", "text encoding")) > 0
    )


def test_a_dry_run_says_what_it_takes(folder, toml, sanarl, tmp_path):
    file = tmp_path / "preset.toml"
    file.write_text(toml("sft", tmp_path / "out"), encoding="utf-8")
    done = sanarl("train", "--config", file, "--dry-run", "--set", f"policy.model_name_or_path={folder}")
    assert done.code == 0, done.err
    assert "a save takes about" in done.out + done.err


@pytest.mark.parametrize("name", ["image-sft", "image-sft-lora", "medium-nft"])
def test_cosmos_presets_for_sd3_run(name, random_family, run_text, tmp_path):
    """With a small model, its size and rank, data that are there and no service; every other value is theirs."""
    here = Path(__file__).parents[2]
    text = (here / "config" / "data" / "presets" / f"stable-diffusion-3-5-{name}.toml").read_text(encoding="utf-8")
    random_family("sd3").save_pretrained(tmp_path / "sd3")
    keys = [f"policy.model_name_or_path={tmp_path / 'sd3'}", "policy.diffusers.inference_size=[64,64]"]
    keys += [f"train.output_dir={tmp_path / 'run'}", "train.max_num_steps=1", "train.epoch=100", "logging.logger=[]"]
    keys += ["policy.diffusers.sample.num_steps=2", "policy.diffusers.sample.eval_num_steps=2"]
    keys += ["train.train_policy.dataset.name=shapes", "validation.dataset.name=shapes", "guards.enable=false"]
    keys += ["validation.num_prompts=2", "policy.parallelism.dp_shard_size=1"]
    keys += [] if name == "image-sft" else ["policy.lora.r=4"]
    keys += [f'{table}.dataset.local_dir=""' for table in ("train.train_policy", "validation")]
    if name == "medium-nft":
        keys += ["train.train_policy.use_remote_reward=false", "train.train_policy.reward_function={shapes=1.0}"]
        keys += ["train.train_batch_per_replica=8", "rollout.n_generation=4"]
        keys += ["train.train_policy.batch_size_per_optimize=8"]
    run = run_text(text, tmp_path / "run", *keys)
    assert run.code == 0
    (step,) = (line for line in run.metrics if line["step"] == 1)
    assert math.isfinite(step["loss"])
    assert step["grad_norm"] > 0
    assert (run.folder / "safetensors" / "step_1").is_dir()
