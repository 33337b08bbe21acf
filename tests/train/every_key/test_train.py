"""[train] without its task: each case shows its key being honoured, or the value refused."""

import math
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sanarl.config import ConfigError
from sanarl.errors import UserError
from sanarl.models.fused import PaddedLora
from sanarl.training import modelling
from sanarl.training.ahead import Encoded

honours = pytest.mark.honours
STOPPING = str(Path(__file__).parents[1] / "stopping.py")
TWELVE = "custom={ count = 12 }"  # two steps of 6 are an epoch


def moments(lab, *overrides, name="exp_avg"):
    """A moment of every value after one step, end to end."""
    state = lab.quick("sft-lora", *overrides).state(1)
    return torch.cat([v.flatten() for path, v in state.items() if path.rpartition("/")[2] == name])


def factor(lab, *overrides):
    """Values of B, which started at zero, end to end."""
    values = lab.learner(lab.quick("sft-lora", *overrides))
    return torch.cat([value.flatten() for name, value in sorted(values.items()) if "lora_B" in name])


# ---- optimiser


@pytest.mark.parametrize(
    ("overrides", "rates"),
    [
        pytest.param([], [1, 1, 1, 1], marks=honours("train.optm_lr")),
        pytest.param(["optm_lr=2e-2"], [2, 2, 2, 2], marks=honours("train.optm_lr")),
        pytest.param(["optm_warmup_steps=2"], [1 / 3, 2 / 3, 1, 1], marks=honours("train.optm_warmup_steps")),
        pytest.param(["optm_warmup_steps=0.5"], [1 / 3, 2 / 3, 1, 1], marks=honours("train.optm_warmup_steps")),
        pytest.param(
            ["optm_warmup_steps=2", "optm_warmup_start_factor=0.4"],
            [0.6, 0.8, 1, 1],
            marks=honours("train.optm_warmup_start_factor"),
        ),
        pytest.param(['optm_decay_type="linear"'], [1, 0.75, 0.5, 0.25], marks=honours("train.optm_decay_type")),
        pytest.param(
            ['optm_decay_type="cosine"'],
            [0.5 * (1 + math.cos(math.pi * i / 4)) for i in range(4)],
            marks=honours("train.optm_decay_type"),
        ),
        pytest.param(
            ['optm_decay_type="sqrt"'],
            [1 - math.sqrt(i / 4) for i in range(4)],
            marks=honours("train.optm_decay_type"),
        ),
        pytest.param(
            ['optm_decay_type="linear"', "optm_decay_ratio=0.5"],
            [1, 1, 1, 0.5],
            marks=honours("train.optm_decay_ratio"),
        ),
        pytest.param(
            ['optm_decay_type="linear"', "optm_min_lr_factor=0.2"],
            [1, 0.8, 0.6, 0.4],
            marks=honours("train.optm_min_lr_factor"),
        ),
    ],
)
def test_learning_rate_of_every_step(lab, overrides, rates):
    # By hand, in hundredths.
    run = lab.quick("sft-lora", "train.max_num_steps=4", *(f"train.{override}" for override in overrides))
    assert [100 * line["lr"] for line in run.metrics] == pytest.approx(rates, rel=1e-9)


@honours("train.optm_lr")
def test_values_move_by_the_learning_rate(lab):
    # Adam's first step is the learning rate times a number that does not depend on it.
    assert factor(lab).abs().max() > 1e-3
    torch.testing.assert_close(factor(lab, "train.optm_lr=2e-2"), 2 * factor(lab))


@honours("train.optm_name", "train.optm_weight_decay")
def test_weight_decay(lab):
    # A has no gradient while B is zero: AdamW shrinks it by lr * decay. Without decay the two optimisers are the same.
    start, decayed = (lab.learner(lab.quick("sft-lora", f"train.optm_weight_decay={d}")) for d in ("0.0", "0.5"))
    for name in (name for name in start if "lora_A" in name):
        torch.testing.assert_close(decayed[name], start[name] * (1 - 1e-2 * 0.5))
    for decay, same in (("0.0", True), ("0.5", False)):
        runs = [lab.quick("sft-lora", f"train.optm_weight_decay={decay}", f'train.optm_name="{n}"') for n in NAMES]
        assert lab.equal(*runs) == same


NAMES = "AdamW", "Adam"


@honours("train.optm_betas")
def test_moments(lab):
    # By hand: after one step they are (1 - beta) times the gradient and its square.
    other = "train.optm_betas=[0.5, 0.9]"
    torch.testing.assert_close(moments(lab, other), moments(lab) * 0.5 / 0.1)
    torch.testing.assert_close(moments(lab, other, name="exp_avg_sq"), moments(lab, name="exp_avg_sq") * 0.1 / 0.001)


@honours("train.epsilon")
def test_epsilon(lab):
    # With an epsilon far above every gradient, a step is lr * gradient / epsilon.
    gradient = moments(lab)[moments(lab) != 0] / 0.1
    moved = factor(lab, "train.epsilon=1e3")
    torch.testing.assert_close(
        moved[moved != 0].sort().values, (-1e-2 * gradient / 1e3).sort().values, rtol=1e-3, atol=0
    )


@honours("train.optm_impl")
def test_inner_loop(lab):
    for name, flags in (("fused", (True, False)), ("foreach", (False, True)), ("for-loop", (False, False))):
        state = lab.quick("sft-lora", f'train.optm_impl="{name}"').state(1)
        assert tuple(state[f"/optimizer/param_groups/0/{flag}"] for flag in ("fused", "foreach")) == flags
        torch.testing.assert_close(factor(lab, f'train.optm_impl="{name}"'), factor(lab))


@honours("train.optm_grad_norm_clip")
def test_clip(lab):
    # The gradient is in the first moment, (1 - 0.9) of it.
    norm = lab.quick("sft-lora").metrics[0]["grad_norm"]
    for clip, left in ((norm / 4, norm / 4), (0.0, norm)):
        assert moments(lab, f"train.optm_grad_norm_clip={clip}").norm() / 0.1 == pytest.approx(left, rel=1e-4)


# ---- average


@honours("train.ema_enable", "train.ema_decay", "train.ema_update_step_interval")
def test_average(lab):
    # By hand: the first update leaves min(1 / 10, decay) of the start, which is zero for B.
    assert "/ema/count" not in lab.quick("sft-lora").state(1)
    for override, left in (("ema_decay=0.5", 0.1), ("ema_decay=0.04", 0.04), ("ema_update_step_interval=2", None)):
        run = lab.quick("sft-lora", "train.ema_enable=true", f"train.{override}")
        state, learner = run.state(1), lab.learner(run)
        assert state["/ema/count"] == (left is not None)
        for place, (name, value) in enumerate(learner.items()):
            if "lora_B" in name:
                torch.testing.assert_close(state[f"/ema/values/{place}"], value * (1 - (1.0 if left is None else left)))


@honours("train.ema_enable")
def test_the_average_is_evaluated(lab):
    seen = {
        lab.quick("nft", "validation.enable=true", f"train.ema_enable={on}").metrics[-1]["eval/redness"] for on in ON
    }
    assert len(seen) == 2


ON = "true", "false"


# ---- dtypes, seeds, kernels


@honours("train.param_dtype", "train.master_dtype")
def test_dtypes(lab, seen):
    for name, dtype in (("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        seen.passes.clear()
        run = lab.fresh("sft-lora", f'train.param_dtype="{name}"')
        assert {kind for _, _, kind in seen.passes} == {dtype}
        assert {value.dtype for value in lab.learner(run).values()} == {torch.float32}
    with pytest.raises(ConfigError, match=r"train\.master_dtype: found \"bfloat16\"; accepted \"float32\""):
        lab.loaded("sft", 'train.master_dtype="bfloat16"')


@honours("train.seed")
def test_seed(lab):
    for task, name in (("sft-lora", "sigma"), ("nft", "reward/mean")):
        assert lab.quick(task, "train.seed=1").metrics[0][name] != lab.quick(task).metrics[0][name]


@honours("train.deterministic")
def test_deterministic_kernels(lab):
    try:
        for asked in ON:
            line = lab.fresh("nft", lab.rewarded("determinism"), f"train.deterministic={asked}").metrics[0]
            assert line["reward/mean"] == (asked == "true")
    finally:
        torch.use_deterministic_algorithms(False)


# ---- how long, and where


@honours("train.epoch", "train.max_num_steps")
@pytest.mark.parametrize(("epoch", "most", "steps"), [(1, 9, 2), (2, 9, 4), (2, 3, 3)])
def test_length(lab, epoch, most, steps):
    run = lab.fresh("sft-lora", TWELVE, f"train.epoch={epoch}", f"train.max_num_steps={most}", module=lab.items)
    assert [line["step"] for line in run.metrics] == list(range(1, steps + 1))


@honours("train.max_hours", "train.output_dir")
def test_time_limit(lab, tmp_path):
    stopped = lab.fresh("sft-lora", "train.max_num_steps=3", "train.max_hours=1e-9", into=tmp_path / "here")
    assert (stopped.code, len(stopped.metrics), stopped.folder.parent) == (0, 1, tmp_path / "here")
    went_on = lab.fresh("sft-lora", "train.max_num_steps=3", into=tmp_path / "here", resume="auto")
    assert (went_on.folder, len(went_on.metrics)) == (stopped.folder, 3)
    assert lab.equal(went_on, lab.quick("sft-lora", "train.max_num_steps=3"))


@honours("train.max_skipped_steps")
@pytest.mark.parametrize("most", [1, 2])
def test_steps_that_are_not_finite(lab, tmp_path, most):
    saved = lab.quick("sft-lora", "train.ckpt.export_safetensors=true").folder / "safetensors" / "step_1"
    values = load_file(saved / "pytorch_lora_weights.safetensors")
    save_file({name: value * 1e30 for name, value in values.items()}, tmp_path / "huge.safetensors")
    keys = f'policy.lora.lora_path="{tmp_path / "huge.safetensors"}"', "policy.lora.lora_alpha=4"
    with pytest.raises(UserError, match=rf"step {most}: .* not finite, and {most} optimiser steps in a row"):
        lab.fresh("sft-lora", *keys, "train.max_num_steps=3", f"train.max_skipped_steps={most}")


@honours("train.resume")
def test_resume(lab, tmp_path):
    first = lab.fresh("sft-lora", into=tmp_path / "runs")
    for value, same in (("true", True), (f'"{first.folder}"', True), ("false", False)):
        keys = f"train.resume={value}", "train.max_num_steps=2"
        run = lab.fresh("sft-lora", *keys, into=tmp_path / "runs", resume=None)
        assert (run.folder == first.folder) == same


@honours("train.save_ckpt_at_exit")
@pytest.mark.parametrize("asked", ON)
def test_saving_at_exit(lab, monkeypatch, asked):
    monkeypatch.setenv("STOP_AT", "7 SIGTERM")  # in the second step
    keys = "train.max_num_steps=4", f"train.save_ckpt_at_exit={asked}"
    run = lab.fresh("sft-lora", *keys, module=STOPPING)
    assert (run.code, len(run.metrics)) == (143, 2)
    assert saved(run) == (["step_2"] if asked == "true" else [])


# ---- checkpoints


def saved(run, folder="checkpoints"):
    return sorted(path.name for path in (run.folder / folder).glob("*"))


@pytest.mark.parametrize(
    ("override", "steps"),
    [
        pytest.param("enable_checkpoint=false", [], marks=honours("train.ckpt.enable_checkpoint")),
        pytest.param("save_freq=1000", [4], marks=honours("train.ckpt.save_freq")),
        pytest.param("save_freq=1", [1, 2, 3, 4], marks=honours("train.ckpt.save_freq")),
        pytest.param("save_freq=3", [3, 4], marks=honours("train.ckpt.save_freq")),
        pytest.param("save_freq_in_epoch=1", [2, 4], marks=honours("train.ckpt.save_freq_in_epoch")),
    ],
)
def test_checkpoints(lab, override, steps):
    keys = TWELVE, "train.epoch=2", "train.max_num_steps=9", f"train.ckpt.{override}"
    assert saved(lab.fresh("sft-lora", *keys, module=lab.items)) == [f"step_{step}" for step in steps]


@honours("train.ckpt.max_keep")
@pytest.mark.parametrize(("most", "kept"), [(1, [3]), (2, [2, 3]), (0, [1, 2, 3]), (-1, [1, 2, 3])])
def test_checkpoints_that_stay(lab, most, kept):
    keys = "train.max_num_steps=3", "train.ckpt.save_freq=1", f"train.ckpt.max_keep={most}"
    run = lab.fresh("sft-lora", *keys, "train.ckpt.export_safetensors=true")
    for folder in ("checkpoints", "safetensors"):
        assert saved(run, folder) == [f"step_{step}" for step in kept]


@honours("train.ckpt.export_safetensors")
def test_export(lab):
    assert saved(lab.quick("sft-lora"), "safetensors") == []
    assert saved(lab.quick("sft-lora", "train.ckpt.export_safetensors=true"), "safetensors") == ["step_1"]


@honours("train.ckpt.save_mode")
@pytest.mark.parametrize(("mode", "goes_on"), [("async", True), ("sync", False)])
def test_training_goes_on_while_a_checkpoint_is_written(lab, tmp_path, monkeypatch, mode, goes_on):
    # The first checkpoint takes until the second step has written its line; half a second where that must not happen.
    save, lines = torch.save, []

    def slow(*args):
        end = time.monotonic() + (30 if goes_on else 0.5)
        while (count := written(tmp_path)) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        lines.append(count)
        save(*args)

    monkeypatch.setattr(torch, "save", slow)
    keys = f'train.ckpt.save_mode="{mode}"', "train.ckpt.save_freq=1", "train.max_num_steps=2"
    lab.fresh("sft-lora", *keys, into=tmp_path / "run")
    assert lines == [2 if goes_on else 1, 2]


def written(parent):
    return sum(len(file.read_text().splitlines()) for file in parent.glob("run/*/metrics.jsonl"))


@honours("train.compile")
def test_compiled_blocks(lab):
    # Nothing is compiled before the first pass; test_compiled.py has the numbers.
    for word, compiled in (("true", True), ("false", False)):
        with lab.parts("sft-lora", f"train.compile={word}") as made:
            blocks = made.model.transformer.transformer_blocks
            assert [block._compiled_call_impl is not None for block in blocks] == [compiled] * len(blocks)


@honours("train.encode_ahead")
@pytest.mark.parametrize("asked", [True, False])
def test_encoding_ahead(lab, monkeypatch, asked):
    # test_ahead.py has the numbers.
    threads = set()
    inner = Encoded.__init__

    def seen(self, *arguments):
        threads.add(threading.current_thread().name.partition("_")[0])
        inner(self, *arguments)

    monkeypatch.setattr(Encoded, "__init__", seen)
    lab.quick("sft-lora", f"train.encode_ahead={str(asked).lower()}", "train.max_num_steps=2")
    assert threads == ({"MainThread", "encode"} if asked else {"MainThread"})


@honours("train.encode_ahead")
@pytest.mark.parametrize(
    ("task", "override", "said"),
    [
        ("nft", "train.seed=0", "only fine-tuning encodes items"),
        ("sft", "data.cache=some", "what is cached is not encoded again"),
        ("sft", "policy.diffusers.offload=true", "the encoders wait on the CPU"),
    ],
)
def test_encoding_ahead_needs_encoders_at_hand(lab, task, override, said):
    with pytest.raises(ConfigError, match=f"train.encode_ahead: found true; accepted false: {said}"):
        lab.loaded(task, "train.encode_ahead=true", override)


@honours("train.fuse")
def test_shared_work(lab):
    # test_fused.py has the numbers. Nothing is fused here by itself: this is no GPU.
    for word, fused in (("true", True), ("false", False), ('"auto"', False)):
        with lab.parts("sft-lora", f"train.fuse={word}") as made:
            found = [m for m in made.model.transformer.modules() if isinstance(m, PaddedLora)]
            assert bool(found) == fused
    for dtype, asked, fused in (
        ("bfloat16", '"auto"', True),
        ("float32", '"auto"', False),
        ("bfloat16", "false", False),
    ):
        config = lab.loaded("sft-lora", f"train.param_dtype={dtype}", f"train.fuse={asked}").config
        assert modelling.fuses(config, torch.device("cuda")) == fused
