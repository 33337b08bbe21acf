"""[guards]: each case shows its key being honoured, or without effect in supervised fine-tuning."""

import pytest

from sanarl.errors import UserError

honours = pytest.mark.honours
ON = "guards.enable=true", "guards.num_prompts=2", "guards.n_generation=2", "policy.diffusers.sample.eval_num_steps=1"


def looks(run):
    """The steps after which it was looked."""
    return [line["step"] for line in run.metrics if "guards/drift" in line]


def said(capsys):
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: guards")]


@honours("guards.enable", "guards.freq")
@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        (["guards.enable=false"], []),
        ([*ON, "guards.freq=1"], [0, 1, 2, 3]),
        ([*ON, "guards.freq=2"], [0, 2, 3]),  # the first and the last always
        ([*ON, "guards.freq=9"], [0, 3]),
    ],
)
def test_when_it_is_looked(lab, keys, steps):
    assert looks(lab.quick("nft", *lab.plain, "train.max_num_steps=3", *keys)) == steps


def test_fine_tuning_has_no_guards(lab):
    keys = ["guards.enable=true", "guards.freq=3", "guards.stop=true"]
    assert {"guards.enable", "guards.freq", "guards.stop"} <= set(lab.idle("sft", *keys))
    assert looks(lab.quick("sft-lora", *keys)) == []


@honours("guards.num_prompts", "guards.n_generation")
def test_how_much_is_looked_at(lab, seen):
    # By hand: 3 x 2 samples, in mini-batches of 4 as in the evaluation; after one step of 3 x 4 samples.
    keys = ["guards.num_prompts=3", "guards.n_generation=2", "policy.diffusers.sample.num_steps=1"]
    lab.fresh("nft", *lab.plain, *ON, *keys)
    look = [4, 2, *[4] * 3, *[2] * 3]  # one solver step, then three noise levels for each mini-batch
    start = [4, 2, *[4] * 3, *[2] * 3, *[4] * 3, *[2] * 3]
    assert seen.sizes(trained=False)[: len(start)] == start
    assert seen.sizes(trained=False).count(2) == start.count(2) * 2
    assert len(look) * 2 - 2 == len(start)


@honours("guards.prompts")
def test_prompts_of_ones_own(lab, tmp_path):
    # The prompts' lengths tell which file they are from.
    file = tmp_path / "fixed.txt"
    file.write_text("x" * 7 + "\n" + "x" * 9 + "\n" + "x" * 90 + "\n")
    run = lab.quick("nft", *lab.plain, *ON, lab.rewarded("length", table="guards"), f"guards.prompts={file}")
    assert run.metrics[0]["guards/length"] == 8
    lines = tmp_path / "fixed.jsonl"
    lines.write_text('{"prompt": "xxxxx", "tag": 1}\n')
    run = lab.quick("nft", *lab.plain, *ON, lab.rewarded("length", table="guards"), f"guards.prompts={lines}")
    assert run.metrics[0]["guards/length"] == 5
    with lab.parts("nft", *ON, f"guards.prompts={lines}") as made:
        assert made.watch.held_out.metadata == [{"prompt": "xxxxx", "tag": 1}]
    with pytest.raises(UserError, match=r"guards\.prompts: .*nowhere\.txt: cannot be read"):
        lab.parts("nft", *ON, "guards.prompts=nowhere.txt")


def test_prompts_of_the_training_set(lab):
    # By hand: of 12 items the first and the seventh, with 7 letters.
    with lab.parts("nft", *ON, module=lab.items) as made:
        assert made.watch.held_out.prompts == ["a", "aaaaaaa"]


@honours("guards.reward_function")
def test_rewards_that_are_not_trained_on(lab):
    own = lab.quick("nft", *lab.plain, *ON, lab.rewarded("width", 3.0, "guards")).metrics
    assert [line["guards/reward"] for line in own] == [3 * 32, 3 * 32]
    trained = lab.quick("nft", *lab.plain, *ON, lab.rewarded("width")).metrics
    assert [line["guards/reward"] for line in trained] == [32, 32]
    with pytest.raises(UserError, match=r"guards\.reward_function: no weight above 0"):
        lab.loaded("nft", lab.rewarded("width", 0.0, "guards"))


@honours("guards.reward_args")
def test_arguments_of_rewards(lab):
    given = f'guards.reward_args={{ "{lab.probe("Scaled")}" = {{ factor = 5 }} }}'
    line = lab.quick("nft", *lab.plain, *ON, lab.rewarded("Scaled", 1.0, "guards"), given).metrics[0]
    assert line["guards/reward"] == 5 * 32


@pytest.mark.parametrize(
    ("key", "quiet", "loud", "words"),
    [
        pytest.param("min_diversity", 0.0, 1.0, "samples of a prompt differ", marks=honours("guards.min_diversity")),
        pytest.param("max_change", 1000.0, 1.0000001, "times the", marks=honours("guards.max_change")),
        pytest.param("max_drift", 1000.0, 1e-9, "velocities are", marks=honours("guards.max_drift")),
    ],
)
def test_limits(lab, capsys, key, quiet, loud, words):
    # One large step moves everything; with this seed samples of a prompt differ by a tenth less afterwards.
    silent = [f"guards.{k}={v}" for k, v in (("min_diversity", 0.0), ("max_change", 1000.0), ("max_drift", 1000.0))]
    far = [
        "train.optm_lr=3e-2",
        "train.seed=1",
        "train.train_policy.advantage_mode=positive_only",
        'logging.logger=["console"]',
    ]
    lines = {}
    for limit in (quiet, loud):
        lab.fresh("nft", *lab.plain, *ON, *far, *silent, f"guards.{key}={limit}", lab.rewarded("width", 1.0, "guards"))
        lines[limit] = [line for line in said(capsys) if words in line]
    assert lines[quiet] == []
    assert len(lines[loud]) >= 1
    assert all(f"guards.{key}" in line for line in lines[loud])


@honours("guards.stop")
def test_a_breach_ends_the_run_when_asked(lab, capsys):
    keys = [*lab.plain, *ON, "guards.freq=1", "guards.max_drift=1e-9", "train.max_num_steps=3"]
    went_on = lab.quick("nft", *keys)
    assert (went_on.code, went_on.metrics[-1]["step"]) == (0, 3)
    folder = lab.parent / "stopped"
    with pytest.raises(UserError, match=r"guards\.stop: the guards ended the run after step 1:\n  velocities are"):
        lab.fresh("nft", *keys, "guards.stop=true", 'logging.logger=["console"]', into=folder)
    (run,) = folder.iterdir()
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step_1"]
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2  # before the first step, and the step itself
    assert "stopped by the guards after step 1 of 3" in capsys.readouterr().err
