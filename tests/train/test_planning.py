"""policy.memory_plan, and the predictions that it goes by. References: by hand, and what tiny runs really hold."""

import json
from dataclasses import replace

import pytest
import torch

from sanarl.config import load
from sanarl.models.footprint import num_bytes
from sanarl.runtime import optim
from sanarl.runtime.world import World
from sanarl.training import build, settings
from sanarl.training.memory import passes, planning

ROUNDING = 5e-5  # as for mini-batches
PLANS = ["as_written", "auto"]


@pytest.fixture
def made(toml, tmp_path):
    """A function that builds the parts of a tiny run."""
    file = tmp_path / "run.toml"

    def build_(task, *overrides):
        file.write_text(toml(task, tmp_path / "out"), encoding="utf-8")
        config = load(file, ("validation.enable=false", *overrides)).config
        return build.parts(config, None, World())

    return build_


def held(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("task", ["sft", "sft-lora", "nft"])
def test_weights_and_optimiser_are_what_a_run_holds(made, task):
    # Reference: the tensors themselves, after an update; a GPU rounds each tensor up to 512 bytes.
    with made(task) as run:
        config, policy = run.config, run.policy
        predicted = run.footprint.predict(config, "off", 1).held
        optimizer = optim.build(policy.masters, settings.optim_settings(config, 1))
        for master in policy.masters:
            master.grad = torch.zeros_like(master)
        optimizer.step()
        moments = [v for state in optimizer.state.values() for v in state.values() if v.dim()]
        average = optim.Ema(policy.masters, 0.9, 1).values
        real = {
            "masters": held(policy.masters),
            "moments": held(moments),
            "moving average": held(average),
            "old and reference values": held([v for values in policy.sets.values() for v in values]),
        }
        assert {name: predicted.get(name, 0) for name in real} == real
        transformer = policy.model.transformer
        assert predicted["transformer"] == num_bytes(transformer)
        assert num_bytes(transformer) == pytest.approx(
            held(transformer.state_dict().values()), rel=0.35
        )  # tiny tensors
        others = run.model.pipeline.text_encoder, run.model.pipeline.vae
        found = predicted["text encoder"], predicted["autoencoder"]
        assert found == tuple(held(module.parameters()) for module in others)


def test_what_idle_models_take(made):
    with made("nft") as run:
        footprint, config = run.footprint, run.config
        stay, visit = (footprint.predict(with_offload(config, value), "off", 1).held for value in (False, True))
        assert stay.keys() - visit.keys() == {"text encoder", "autoencoder"}
        both = [footprint.predict(with_offload(config, value), "off", 1) for value in (False, True)]
        weights = stay["autoencoder"]
        decoding = [each.phases["rollout: decoding"] for each in both]
        assert decoding[1] - decoding[0] == weights


def with_offload(config, value):
    diffusers = config.policy.diffusers.model_copy(update={"offload": value})
    return config.model_copy(update={"policy": config.policy.model_copy(update={"diffusers": diffusers})})


def test_a_plan_keeps_within_what_there_is(made):
    # Less memory: never a larger pass; far too little: the smallest, and it says so.
    with made("sft") as run:
        footprint, config = run.footprint, run.config
        whole = planning.chosen(config, footprint, None)
        assert (whole.checkpointing, whole.mini_batch) == ("off", 6)
        fixed = sum(whole.prediction.held.values())
        passes_taken = []
        for share in (1.0, 0.8, 0.6, 0.5, 0.4, 0.35):
            room = fixed + share * footprint.training(config, "off", 6)
            plan = planning.chosen(config, footprint, int(room * planning.ALLOCATOR) + 1)
            taken = footprint.training(config, plan.checkpointing, plan.mini_batch)
            assert taken <= share * footprint.training(config, "off", 6) + 1
            passes_taken.append(taken)
        assert passes_taken == sorted(passes_taken, reverse=True)
        assert len(set(passes_taken)) > 2
        nothing = planning.chosen(config, footprint, 1)
        assert (nothing.checkpointing, nothing.mini_batch) == ("full", 1)
        assert "NOT ENOUGH" in nothing.line()


def test_sizes_of_mini_batches():
    # 10 rows in 1, 2, 3, 4, 5 and 10 parts, each as small as it may be for that.
    assert planning.candidates(10) == [1, 2, 3, 4, 5, 10]
    assert planning.candidates(1) == [1]
    assert max(planning.candidates(1152)) == 64


@pytest.mark.parametrize("task", ["sft", "nft", "flowgrpo"])
def test_a_chosen_plan_changes_nothing_but_rounding(task, train, baseline, same):
    # Reference: mini-batches of 3 (SFT) and 5 (of 6 samples) without checkpointing; here one of all samples.
    found = train(task, 'policy.memory_plan="auto"', "policy.model_gradient_checkpointing=true")
    same(found, baseline(task), rounding=ROUNDING)
    told = json.loads((found.folder / "memory.json").read_text())
    assert (told["memory_plan"], told["mini_batch"], told["checkpointing"]) == ("auto", 6, "off")
    assert told["predicted"]["peak"] < told["budget"]


def test_compiled_blocks_keep_less(made):
    # Reference: by hand, of what torch's partition of a block's graph was found to leave out.
    with made("sft-lora") as run:
        fused = run.footprint.passes.fused_away()
        eager = run.footprint.training(run.config, "off", 2)
        train = run.config.train.model_copy(update={"compile": True})
        compiled = run.footprint.training(run.config.model_copy(update={"train": train}), "off", 2)
    assert eager - compiled == 2 * 2 * fused  # blocks x samples
    assert 0 < fused < eager / 8  # a quarter of a pass would be all that a block and sample keeps


def test_guidance_in_training_keeps_two_passes(made):
    with made("flowgrpo") as run:
        taken = run.footprint.passes
        assert taken.training("off", 2, guided=True) > 1.8 * taken.training("off", 2, guided=False)
        assert taken.sampling(2, guided=True) >= taken.sampling(2, guided=False)


def test_ranks_that_share_weights_hold_parts(made):
    with made("sft", "policy.parallelism.dp_shard_size=2", "train.train_batch_per_replica=3") as run:
        alone, shared = (replace(run.footprint, world_size=size).predict(run.config, "off", 1) for size in (1, 2))
    for name in ("transformer", "masters", "moments", "moving average"):
        assert shared.held[name] == alone.held[name] // 2


def test_the_plan_that_a_dry_run_prints(toml, tmp_path, capsys):
    from sanarl.training import run

    file = tmp_path / "run.toml"
    file.write_text(toml("sft-lora", tmp_path / "out"), encoding="utf-8")
    run.run(load(file, ("validation.enable=false",)), None, "never", dry_run=True)
    said = capsys.readouterr().err
    assert "memory plan (as_written): checkpointing off, mini_batch 3; predicted peak" in said
    assert "predicted for a GPU; there is none here, by part:" in said
    assert "always there" in said
    assert "besides, one at a time: " in said


def test_shadows_know_no_values(made):
    with made("nft") as run:
        ghost = passes.transformer_shadow(run.config, build_model(run))
    assert {p.device.type for p in ghost.parameters()} == {"meta"}


def build_model(run):
    from sanarl.models.load import load_model
    from sanarl.training.modelling import model_settings

    return load_model(model_settings(run.config), torch.device("cpu"))
