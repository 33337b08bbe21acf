"""[validation], [logging] and [custom]: each case shows its key being honoured, refused, or without effect."""

import pytest

from sanarl.errors import UserError

honours = pytest.mark.honours
ON = "validation.enable=true", "validation.val_before_train=false"


def evaluated(run):
    """The steps that were evaluated."""
    return [line["step"] for line in run.metrics if any(name.startswith("eval/") for name in line)]


@honours("validation.enable", "validation.val_before_train", "validation.freq")
@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        (["validation.enable=false", "validation.val_before_train=true"], []),
        ([*ON, "validation.freq=1"], [1, 2, 3]),
        ([*ON, "validation.freq=2"], [2, 3]),  # the last step always
        (["validation.enable=true", "validation.val_before_train=true", "validation.freq=9"], [0, 3]),
    ],
)
def test_when_it_is_evaluated(lab, keys, steps):
    assert evaluated(lab.quick("sft-lora", "train.max_num_steps=3", *keys)) == steps


@pytest.mark.parametrize(
    ("key", "sizes"),
    [
        pytest.param("batch_size=6", [6], marks=honours("validation.batch_size")),
        pytest.param("batch_size=4", [4, 2], marks=honours("validation.batch_size")),
        pytest.param("n_generation=1", [3], marks=honours("validation.n_generation")),
        pytest.param("n_generation=3", [3, 3, 3], marks=honours("validation.n_generation")),
        pytest.param("num_prompts=2", [3, 1], marks=honours("validation.num_prompts")),
    ],
)
def test_samples_of_an_evaluation(lab, seen, key, sizes):
    # By hand: 3 prompts x 2 samples, in mini-batches of 3 as in training, unless told.
    lab.fresh("sft-lora", *ON, "policy.diffusers.sample.num_steps=1", f"validation.{key}")
    assert seen.sizes(trained=False) == sizes


@honours("validation.num_prompts")
def test_all_prompts(lab):
    for given, count in ((12, 12), (40, 12)):
        with lab.parts("nft", *ON, f"validation.num_prompts={given}", module=lab.items) as made:
            assert len(made.held_out.prompts) == count


@honours("validation.reward_function")
def test_rewards_of_an_evaluation(lab):
    own = lab.quick("nft", *ON, lab.rewarded("width", 3.0, "validation")).metrics[0]
    assert own["eval/reward"] == 3 * 32
    assert own["reward/mean"] < 1
    trained = lab.quick("nft", *ON, lab.rewarded("width"), "validation.reward_function={}").metrics[0]
    assert trained["eval/reward"] == 32


@honours("validation.reward_args")
def test_arguments_of_rewards_of_an_evaluation(lab):
    given = f'validation.reward_args={{ "{lab.probe("Scaled")}" = {{ factor = 5 }} }}'
    line = lab.quick("nft", *ON, lab.rewarded("Scaled", 1.0, "validation"), given).metrics[0]
    assert line["eval/reward"] == 5 * 32


@honours("validation.dataset.name", "validation.dataset.local_dir", "validation.dataset.split")
def test_held_out_prompts(lab, tmp_path):
    # The prompts' lengths tell which file they are from.
    for name, length in (("a/train", 3), ("a/test", 5), ("a/dev", 7), ("b/test", 9), ("test", 11)):
        file = tmp_path / f"{name}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text("x" * length + "\n")
    training = [
        f'train.train_policy.dataset.{key}="{value}"' for key, value in (("local_dir", tmp_path), ("name", "a"))
    ]
    for name, split, length in (("a", "", 5), ("a", "dev", 7), ("b", "", 9), ("", "", 11)):
        keys = [f'validation.dataset.{k}="{v}"' for k, v in (("local_dir", tmp_path), ("name", name), ("split", split))]
        line = lab.quick("nft", *ON, *training, *keys, lab.rewarded("length", table="validation")).metrics[0]
        assert line["eval/length"] == length
    for key, value in (("name", "others"), ("local_dir", "somewhere"), ("split", "all")):
        with pytest.raises(UserError, match=rf"validation\.dataset\.{key}: found '{value}'"):
            lab.parts("sft", *ON, f'validation.dataset.{key}="{value}"')


# ---- what is said, and where


@honours("logging.logger", "logging.log_interval")
@pytest.mark.parametrize(
    ("keys", "lines"),
    [
        (["logging.logger=[]"], []),
        (['logging.logger=["console"]'], [1, 2, 3, 4, 5]),
        (['logging.logger=["console"]', "logging.log_interval=2"], [2, 4, 5]),  # the last step always
    ],
)
def test_console(lab, capsys, keys, lines):
    run = lab.fresh("sft-lora", "train.max_num_steps=5", *keys)
    said = [line.split()[1] for line in capsys.readouterr().err.splitlines() if line.startswith("step ")]
    assert said == [f"{step}/5" for step in lines]
    assert len(run.metrics) == 5


@honours("logging.multi_modal_log_interval")
def test_sheets_of_rollouts(lab):
    for given, steps in (("", []), ("1", [1, 2, 3]), ("2", [2])):
        keys = [f"logging.multi_modal_log_interval={given}"] if given else []
        run = lab.quick("nft", *lab.plain, "train.max_num_steps=3", *keys)
        found = sorted(path.name for path in (run.folder / "samples").glob("rollout_*"))
        assert found == [f"rollout_{step:06d}.png" for step in steps]
    key = "logging.multi_modal_log_interval"
    assert key in lab.idle("sft", f"{key}=1")


@pytest.mark.slow
@honours("logging.logger", "logging.project_name", "logging.group_name", "logging.experiment_name")
def test_wandb(lab, monkeypatch):
    import wandb

    runs, init = [], wandb.init
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(wandb, "init", lambda **named: (runs.append(init(**named)), runs[-1])[1])
    names = {"project_name": "some-project", "group_name": "some-group", "experiment_name": "some-name"}
    keys = [f'logging.{key}="{name}"' for key, name in names.items()]
    told = lab.fresh("sft-lora", 'logging.logger=["wandb"]', *keys)
    untold = lab.fresh("sft-lora", 'logging.logger=["wandb"]')
    assert [(run.project, run.group or None, run.name) for run in runs] == [
        ("some-project", "some-group", "some-name"),
        ("cosmos_rl", None, untold.folder.name),
    ]
    for run in (told, untold):
        (file,) = run.folder.glob("wandb/offline-run-*/run-*.wandb")
        assert file.stat().st_size > 0
    assert not (lab.quick("sft-lora").folder / "wandb").exists()


@honours("logging.logger")
def test_tensorboard(lab, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = lab.fresh("sft-lora", "train.max_num_steps=2", "validation.enable=true", 'logging.logger=["tensorboard"]')
    found = EventAccumulator(str(run.folder / "tensorboard"))
    found.Reload()
    # Reference: metrics.jsonl; every name and value, as float32.
    for name in {name for line in run.metrics for name in line} - {"step"}:
        expected = [(line["step"], line[name]) for line in run.metrics if name in line]
        got = [(event.step, event.value) for event in found.Scalars(name)]
        assert [step for step, _ in got] == [step for step, _ in expected]
        assert [value for _, value in got] == pytest.approx([value for _, value in expected], rel=1e-6)
    assert [event.step for event in found.Images("samples")] == [0, 2]
    assert not (lab.quick("sft-lora").folder / "tensorboard").exists()
    monkeypatch.setattr("sanarl.training.trackers.find_spec", lambda _: None)
    with (
        pytest.raises(UserError, match=r"pip install 'sanarl\[tensorboard\]'"),
        lab.parts("sft", 'logging.logger=["tensorboard"]'),
    ):
        pass


@honours("logging.report_mfu")
def test_share_of_the_peak(lab):
    # Reference: the peak that the log names; without the key there are no such metrics.
    run = lab.fresh("nft", *lab.plain, "logging.report_mfu=true")
    (said,) = [line for line in (run.folder / "log.txt").read_text().splitlines() if "perf/mfu" in line]
    tflops = float(said.partition("the share of ")[2].partition(" TFLOP/s")[0])
    (line,) = run.metrics
    assert line["perf/tflops"] > 0
    assert line["perf/mfu"] == pytest.approx(line["perf/tflops"] / tflops, rel=1e-3)
    assert not any(name.startswith("perf/") for name in lab.quick("nft", *lab.plain).metrics[0])


@honours("custom")
def test_ones_own_table_reaches_ones_own_data_set(lab):
    for count in (12, 20):
        with lab.parts("sft", f"custom={{ count = {count} }}", module=lab.items) as made:
            assert len(made.dataset) == count
