"""Runs that must be equal are compared whole: every line of metrics.jsonl without times, and every saved value."""

from collections import Counter

import pytest
import torch
from safetensors.torch import load_file

from sanarl.algorithms import nft, sft
from sanarl.errors import UserError
from sanarl.types import Term

pytestmark = pytest.mark.parametrize("frames", [1, 5], ids=["image", "video"], indirect=True, scope="module")
TASKS = ["sft", "sft-lora", "nft", "awm", "flowgrpo"]
ROUNDING = 5e-5
"""Float32 sums in another order, through four optimiser steps at a learning rate of 1e-2."""


@pytest.fixture
def stopping(request):
    """Path of the data set that sends signals."""
    return str(request.path.parent / "stopping.py")


@pytest.mark.parametrize("task", TASKS)
def test_a_run_that_was_stopped_and_resumed_is_the_uninterrupted_one(
    task, train, baseline, same, stopping, monkeypatch
):
    # Reference: the uninterrupted run, bit by bit on the CPU. The signal comes while step 3 takes its first item.
    whole = baseline(task)
    assert whole.code == 0
    assert [line["step"] for line in whole.metrics] == [0, 1, 2, 3, 4]
    monkeypatch.setenv("STOP_AT", f"{8 if task in ('nft', 'awm', 'flowgrpo') else 13} SIGTERM")
    stopped = train(task, into="stopped", module=stopping)
    assert stopped.code == 143
    assert [line["step"] for line in stopped.metrics] == [0, 1, 2, 3]
    assert sorted(p.name for p in (stopped.folder / "checkpoints").iterdir()) == ["step_2", "step_3"]
    monkeypatch.delenv("STOP_AT")
    with open(stopped.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 4, "loss": 0.')  # what a crash leaves
    resumed = train(task, into="stopped", module=stopping, resume="auto")
    assert resumed.folder == stopped.folder
    same(resumed, whole)
    # Once more, from the step before: what was saved after it is made again.
    again = train(task, into="stopped", module=stopping, resume=str(stopped.folder / "checkpoints" / "step_2"))
    assert again.folder == stopped.folder
    same(again, whole)


def test_sigusr1_saves_and_changes_nothing(train, baseline, same, stopping, monkeypatch):
    # Reference: the run without it.
    whole = baseline("sft-lora")
    monkeypatch.setenv("STOP_AT", "13 SIGUSR1")
    asked = train("sft-lora", into="asked", module=stopping)
    assert asked.code == 0
    assert (asked.folder / "checkpoints" / "step_3").is_dir()
    assert not (whole.folder / "checkpoints" / "step_3").exists()
    same(asked, whole)


@pytest.mark.parametrize(
    ("task", "mini_batch"), [("sft", 1), ("sft", 6), ("nft", 2), ("nft", 12), ("awm", 2), ("flowgrpo", 2)]
)
def test_mini_batches_change_nothing_but_rounding(task, mini_batch, train, baseline, same):
    # Reference: mini-batches of 3 (SFT, 6 samples) and 5 (NFT, 6 samples in each of two optimiser steps).
    found = train(task, f"train.train_policy.mini_batch={mini_batch}")
    same(found, baseline(task), rounding=ROUNDING)


@pytest.mark.parametrize("at_once", [5, 12])
def test_samples_drawn_at_once_change_nothing_but_rounding(at_once, train, baseline, same):
    # Reference: a group of 4 at once; 5 divides neither the 12 rows nor the groups.
    found = train("nft", f"rollout.n_generation_mini_batch={at_once}", "validation.batch_size=2")
    same(found, baseline("nft"), rounding=ROUNDING)


def test_parallelism_is_a_wish_and_the_global_batch_the_contract(train, baseline, same):
    # Reference: 6 samples a step written for one GPU; here for 3 GPUs of 2 samples, run on one rank. Bit by bit.
    sizes = ["train.train_batch_per_replica=2", "policy.parallelism.dp_shard_size=3"]
    same(train("sft-lora", *sizes), baseline("sft-lora"))


def test_readers_change_nothing(train, baseline, same):
    # Reference: the run that reads in its own thread, bit by bit.
    keys = ["dataloader_num_workers=2", "dataloader_prefetch_factor=3"]
    same(train("sft-lora", *(f"train.train_policy.{k}" for k in keys)), baseline("sft-lora"))


def test_seeds_and_orders_count(train, baseline):
    expected, short = baseline("sft-lora").metrics[1]["loss"], "train.max_num_steps=2"
    assert train("sft-lora", short, "train.seed=1", into="seed").metrics[1]["loss"] != expected
    assert train("sft-lora", short, "train.train_policy.dataloader_seed=1", into="order").metrics[1]["loss"] != expected


@pytest.mark.parametrize("task", ["sft", "nft"])
def test_defect_order_dependent_noise_is_caught(task, train, same, monkeypatch):
    from sanarl.maths import draw

    def by_order(ids, shape, *key):
        return torch.randn(len(ids), *shape, generator=draw.generator(*key))

    monkeypatch.setattr(draw, "normal", by_order)
    keys = "train.max_num_steps=2", "validation.enable=false"
    expected = train(task, *keys, into="expected")
    found = train(task, *keys, "train.train_policy.mini_batch=2", into="found")
    with pytest.raises(AssertionError):
        same(found, expected, step=2, rounding=ROUNDING)


def test_nft_has_work_to_do(baseline):
    # The other tests would be empty if rewards were equal or weights stood still.
    run = baseline("nft")
    assert all(line["zero_std_ratio"] == 0 for line in run.metrics[1:])
    assert all(line["reward_std_mean"] > 1e-4 for line in run.metrics[1:])
    state = run.state(4)
    names = {path.rpartition("/")[2] for path in state if path.startswith("/policy/sets/learner/")}
    for name in names:
        learner, old, reference = (state[f"/policy/sets/{s}/{name}"] for s in ("learner", "old", "reference"))
        assert not torch.equal(learner, old)  # at decay 1, 0.001 of the way behind for every update
        if "lora_B" in name:
            assert (old - reference).abs().max() > 3e-3
    assert run.metrics[0]["eval/redness"] != run.metrics[-1]["eval/redness"]
    assert run.metrics[1]["old_deviate"] > 0  # the second optimiser step of a rollout has left the old policy
    assert {line["group_size"] for line in run.metrics[1:]} == {4.0}


def test_first_nft_step_on_the_old_policy(train):
    # Reference: with one optimiser step a rollout, the first is taken at the old policy and the reference.
    line = train("nft", "train.train_policy.batch_size_per_optimize=12", "train.max_num_steps=1").metrics[1]
    assert line["old_deviate"] == line["kl_div_loss"] == line["old_kl_div"] == 0
    assert line["positive_loss"] == pytest.approx(line["negative_loss"])
    assert line["loss"] == line["policy_loss"]


def test_decay_0_copies_the_learner_after_every_rollout(train):
    # Reference: old is the learner in the checkpoint, bit by bit.
    state = train("nft", "policy.diffusers.weight_copy_decay_type=0").state(4)
    assert state["/policy/old_is_learner"] is True
    old = {p: v for p, v in state.items() if p.startswith("/policy/sets/old/")}
    assert old
    assert all(torch.equal(v, state[p.replace("/old/", "/learner/")]) for p, v in old.items())


@pytest.mark.parametrize("ema", ["true", "false"])
def test_exports_hold_the_values_that_are_evaluated(train, baseline, ema):
    # Reference: the average in the checkpoint when there is one, else the learner, bit by bit.
    run = baseline("nft") if ema == "true" else train("nft", "train.ema_enable=false")
    saved = load_file(run.folder / "safetensors" / "step_4" / "pytorch_lora_weights.safetensors")
    state = run.state(4)
    names = [p.rpartition("/")[2] for p in state if p.startswith("/policy/sets/learner/")]
    assert len(names) == len(saved)
    for place, name in enumerate(names):
        value = state[f"/ema/values/{place}" if ema == "true" else f"/policy/sets/learner/{name}"]
        assert torch.equal(saved["transformer." + name.replace(".default.", ".")], value)


def test_a_run_can_start_from_an_adapter_which_is_then_its_reference(train, baseline):
    # Reference: the exported adapter, bit by bit.
    first = baseline("sft-lora")
    adapter = first.folder / "safetensors" / "step_4"
    saved = load_file(adapter / "pytorch_lora_weights.safetensors")
    run = train("nft", f'policy.lora.lora_path="{adapter}"', "train.max_num_steps=2")
    for path, value in run.state(2).items():
        if path.startswith("/policy/sets/reference/"):
            name = path.rpartition("/")[2].replace(".default.", ".")
            assert torch.equal(value, saved[f"transformer.{name}"])
    assert run.metrics[0]["eval/redness"] == pytest.approx(first.metrics[-1]["eval/redness"], abs=1e-5)


def test_half_precision_weights_train(train):
    run = train("nft", 'train.param_dtype="bfloat16"', "train.max_num_steps=2")
    assert {v.dtype for p, v in run.state(2).items() if "/sets/" in p} == {torch.float32}
    assert run.metrics[-1]["grad_norm"] > 0


def test_a_run_leaves_its_files(train, frames):
    run = train("nft", "logging.multi_modal_log_interval=2")
    names = {str(p.relative_to(run.folder)) for p in run.folder.rglob("*") if p.is_file()}
    assert {"config.toml", "config.json", "metrics.jsonl", "rewards.jsonl", "events.jsonl", "log.txt"} <= names
    assert "samples/before_after.png" in names
    assert {f"samples/step_00000{i}.png" for i in (0, 2, 4)} <= names
    assert {f"samples/rollout_00000{i}.png" for i in (2, 4)} <= names
    assert {f"checkpoints/step_{i}/{n}" for i in (2, 4) for n in ("state.pt", "manifest.json")} <= names
    assert "safetensors/step_4/pytorch_lora_weights.safetensors" in names
    assert not any("partial" in name for name in names)
    clips = {name for name in names if name.endswith(".mp4")}
    wanted = {**{f"samples/step_00000{i}": 6 for i in (0, 2, 4)}, **{f"samples/rollout_00000{i}": 4 for i in (2, 4)}}
    assert Counter(name.rpartition("/")[0] for name in clips) == (wanted if frames > 1 else {})


def test_every_optimiser_step_has_draws_of_its_own(train, monkeypatch):
    # Reference: (seed, step, number of the optimiser step) for 2 steps of 2 passes of 2 optimiser steps.
    keys, terms = [], nft.terms
    monkeypatch.setattr(nft, "terms", lambda *args: (keys.append(args[3]), terms(*args))[1])
    train("nft", "train.train_policy.mu_iterations=2", "train.max_num_steps=2", "validation.enable=false")
    assert keys == [(0, step, number) for step in (1, 2) for number in range(4)]


def test_the_average_counts_optimiser_steps(train):
    # Reference: by hand: of 8 optimiser steps in 4 rollouts, the third and the sixth count.
    run = train("nft", "train.ema_update_step_interval=3", "validation.enable=false")
    assert (run.state(4)["/progress/updates"], run.state(4)["/ema/count"]) == (8, 2)


# ---- what must not go on


def wreck(folder, kind):
    state = folder / "checkpoints" / "step_4" / "state.pt"
    match kind:
        case "cut short":
            state.write_bytes(state.read_bytes()[:1000])
        case "no manifest":
            state.with_name("manifest.json").unlink()


@pytest.mark.parametrize("kind", ["cut short", "no manifest"])
def test_a_damaged_checkpoint_stops_the_run_and_nothing_starts_anew(train, kind):
    run = train("sft-lora")
    wreck(run.folder, kind)
    before = run.metrics
    for resume in ("auto", str(run.folder), str(run.folder / "checkpoints" / "step_4")):
        with pytest.raises(UserError, match=r"step_4: this checkpoint cannot be used"):
            train("sft-lora", "train.max_num_steps=6", resume=resume)
    assert run.metrics == before
    assert list(run.folder.parent.iterdir()) == [run.folder]


def test_a_run_of_another_configuration_is_not_resumed(train):
    first = train("sft-lora", into="run")
    with pytest.raises(UserError, match=r"train\.optm_weight_decay: 0\.01 -> 0\.5"):
        train("sft-lora", "train.optm_weight_decay=0.5", into="run", resume=str(first.folder))
    other = train("sft-lora", "train.optm_weight_decay=0.5", into="run", resume="auto")
    assert other.folder != first.folder
    assert [line["step"] for line in other.metrics] == [0, 1, 2, 3, 4]


def test_resume_in_the_file_is_the_default_of_the_flag(train):
    first = train("sft-lora", "train.max_num_steps=2")
    second = train("sft-lora", "train.resume=true", resume=None)
    assert second.folder == first.folder
    third = train("sft-lora", "train.resume=true", resume="never")
    assert third.folder != first.folder


def poisoned(terms, bad):
    """The terms with a loss of NaN in the optimiser steps numbered ``bad``."""
    count = 0

    def inner(*args, **named):
        nonlocal count
        count += 1
        for term in terms(*args, **named):
            yield Term(term.loss * float("nan") if count in bad else term.loss, term.weight, term.metrics)

    return inner


def test_a_step_that_is_not_finite_is_left_out_and_counted(train, monkeypatch):
    monkeypatch.setattr(sft, "terms", poisoned(sft.terms, {2}))
    run = train("sft-lora", "validation.enable=false")
    assert [line["skipped_steps"] for line in run.metrics] == [0, 1, 1, 1]
    assert run.metrics[1].keys() == {"step", "skipped_steps"}
    assert all(line["loss"] > 0 for line in run.metrics if line["step"] != 2)
    state = run.state(4)
    assert (state["/progress/step"], state["/progress/updates"], state["/ema/count"]) == (4, 3, 3)
    assert all(torch.isfinite(v).all() for v in state.values() if isinstance(v, torch.Tensor))


def test_too_many_of_them_stop_the_run(train, monkeypatch):
    monkeypatch.setattr(nft, "terms", poisoned(nft.terms, {3, 4}))
    with pytest.raises(UserError, match=r"step 2: the loss of term 0 is not finite, and 2 optimiser steps in a row"):
        train("nft", "train.max_skipped_steps=2")
