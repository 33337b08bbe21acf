"""Benchmarks that need a GPU, tried on the CPU with a tiny model."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # as python benchmarks/NAME.py has it: they import one another


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def full_size():
    return loaded("sana_video_full_size")


def written(folder):
    (file,) = folder.iterdir()
    return json.loads(file.read_text())["runs"]


@pytest.mark.slow
def test_every_step_of_the_full_size_benchmark_of_video(full_size, tmp_path):
    assert not full_size.main(["--tiny", "--steps", "1", "--write", str(tmp_path)])
    runs = written(tmp_path)
    assert [(run["name"], run["frames"]) for run in runs] == [
        ("sft-lora", 5),
        ("sft", 5),
        ("sft-lora-81", 9),
        ("nft", 5),
        ("flowgrpo", 5),
    ]
    for run in runs:
        assert run["finite"]
        assert run["skipped_steps"] == 0
        assert run["grad_norm"] > 0
        assert {"encode_prompts", "velocity_with_grad"} <= run["seconds_of_calls"].keys()
        assert ("decode" if run["name"] in ("nft", "flowgrpo") else "encode_media") in run["seconds_of_calls"]


def test_a_step_that_takes_too_long_is_broken_off_and_the_rest_goes_on(full_size, tmp_path, capsys):
    assert full_size.main(["--tiny", "--limit", "0.05", "--only", "sft", "nft", "--write", str(tmp_path)])
    assert [run["failed"] for run in written(tmp_path)] == ["TooLong: broken off after 0.05 s"] * 2
    assert "TooLong" in capsys.readouterr().err


def test_the_comparison_of_algorithms_is_drawn_from_its_runs(tmp_path):
    # Reference: by hand. Two steps of 8 samples with an evaluation at their ends; a step takes 2 CPU seconds.
    algorithms, folder = loaded("algorithms"), tmp_path / "run"
    folder.mkdir()
    step = {"loss": 0.1, "time/step": 3.0, "group_size": 4.0, "trained_prompt_num": 2.0}
    seen = [{"eval/reward": r, "eval/shapes/strict": 0.1, "eval/diversity": 0.2} for r in (0.4, 0.5)]
    lines = [{"step": 0, **seen[0]}, {"step": 1, **step}, {"step": 2, **step, **seen[1]}]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    (tmp_path / "cpu.json").write_text("[10.0, 12.0, 20.0]", encoding="utf-8")
    runs = [algorithms.outcome(name, 0, 2, tmp_path) for name in ("nft", "flowgrpo")]
    assert [runs[0][key] for key in ("steps", "samples", "cpu_seconds", "reward", "rise")] == [
        [0, 2],
        [0, 16],
        [0.0, 4.0],
        [0.4, 0.5],
        0.1,
    ]
    assert runs[0]["cpu_seconds_of_the_run"] == 20.0
    lines = ElementTree.fromstring(algorithms.picture(runs)).findall(".//{*}polyline")
    assert len(lines) == 2 * 2 * 2  # panels, algorithms, one seed and the mean
    assert {line.get("stroke") for line in lines} == set(algorithms.COLOURS.values())


def test_every_stage_of_the_rollout_benchmark(tmp_path, capsys):
    bench = loaded("rollout")
    assert not bench.main(["--tiny", "--batch", "2", "--repeat", "1", "--write", str(tmp_path)])
    (file,) = tmp_path.iterdir()
    found = json.loads(file.read_text())
    assert [stage["name"] for stage in found["stages"]] == ["baseline", "compile", "fp8"]
    assert found["ratios"].keys() == {*bench.CLAIMS, "sol_rl-fp8 step / naive_scaling"}
    for stage in found["stages"][1:]:
        assert stage["recompiled_after_warm_up"] == 0
        assert 0 < stage["velocity_error"] < 0.3
    assert found["stages"][1]["velocity_error"] < 1e-5  # a copy in float32
    assert "full / baseline" in capsys.readouterr().out


@pytest.mark.slow
def test_how_previews_rank_is_measured(tmp_path, capsys):
    fidelity = loaded("fidelity")
    sizes = ["--seeds", "0", "--prompts", "2", "--candidates", "4"]
    fidelity.main(["ranks", *sizes, "--write", str(tmp_path)])
    (file,) = tmp_path.iterdir()
    found = json.loads(file.read_text())
    assert found["means"].keys() == fidelity.PREVIEWS.keys()
    assert found["means"]["again"]["kendall"] == pytest.approx(1.0)
    assert "in 12 linear layers" in found["layers"]["emulated_nvfp4"]
    assert "emulated FP8" in capsys.readouterr().out


def test_the_plot_of_pools_is_drawn_from_its_runs():
    # Reference: by hand. Two pools, two seeds, and a mean each.
    rewards = {"24": {"0": [0.1, 0.2], "1": [0.2, 0.3]}, "96": {"0": [0.1, 0.4], "1": [0.3, 0.5]}}
    lines = ElementTree.fromstring(loaded("fidelity").picture(rewards)).findall(".//{*}polyline")
    assert len(lines) == 2 * (2 + 1)
    ends = [float(line.get("points").split()[-1].split(",")[1]) for line in lines]
    assert min(ends) == 28.0  # 0.5, the highest, ends at the top


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "kills"), [(1, 4), (2, 2)])
def test_kills_lose_nothing_that_was_complete(tmp_path, ranks, kills):
    # In a process of its own, since it forks. Reference: a run that nobody killed, bit by bit.
    words = ["--ranks", str(ranks), "--kills", str(kills), "--write", tmp_path]
    done = subprocess.run([sys.executable, BENCHMARKS / "kills.py", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = tmp_path.iterdir()
    found = json.loads(file.read_text())
    assert found["wrong"] == []
    assert found["counts"]["in a save"] + found["counts"]["between saves"] == kills


@pytest.mark.slow
def test_the_benchmark_of_training_measures_what_it_says(tmp_path):
    train = loaded("train")
    only = ["nft-baseline", "nft-as-written", "resume"]
    sizes = ["--tiny", "--samples", "24", "--steps", "2", "--batch", "4"]
    assert not train.main([*sizes, "--only", *only, "--write", str(tmp_path)])
    runs = {run["name"]: run for run in written(tmp_path)}
    assert list(runs) == only
    assert runs["resume"]["equal_bit_by_bit"]
    assert runs["resume"]["distance_of_values"]["run_again"] == 0
    assert runs["nft-baseline"]["timesteps"] == 3
    # By hand: 2 ms outside and 3 timesteps of 1 ms are 11 ms with the preset's nine.
    assert (
        train.whole_step(runs["nft-baseline"] | {"ms_a_sample": 5.0, "ms_trained_a_sample_and_timestep": 1.0}) == 11.0
    )


@pytest.mark.slow
def test_the_benchmark_of_scale_starts_ranks_and_compares_them(tmp_path, capfd):
    scale = loaded("scale")
    assert not scale.main(["--tiny", "--steps", "1", "--only", "nft", "equal-sft", "--write", str(tmp_path)])
    assert [(run["name"], run["ranks"], run["samples_a_step"]) for run in written(tmp_path)] == [
        ("nft", 1, 8),
        ("equal-sft", 1, 8),
        ("nft", 2, 16),
        ("equal-sft", 2, 8),
    ]
    (file,) = tmp_path.iterdir()
    found = json.loads(file.read_text())
    assert found["losses"]["equal-sft on 2"]["largest_relative_difference"] < 1e-5
    assert found["efficiency"].keys() == {"nft on 2"}
    assert found["runs"][2]["gradient_bytes"] > 0
    assert "samples/s" in capfd.readouterr().out


def test_what_scaling_means_is_computed_from_its_runs():
    # Reference: by hand. Twice the samples in 1.25 times the time on two ranks: 80 %.
    scale = loaded("scale")

    def run(name, ranks, samples, step, train, losses):
        medians = {"time/step": step, "time/train": train}
        rate = samples / step
        return {
            "name": name,
            "ranks": ranks,
            "samples_a_step": samples,
            "samples_a_second": rate,
            "medians": medians,
        } | {
            "losses": losses,
            "timesteps": 2,
            "memory_peak_gib": [1.0] * ranks,
        }

    runs = [
        run("sft", 1, 8, 2.0, 1.0, [1.0]),
        run("hsdp", 2, 16, 2.5, 2.0, [1.0]),
        run("equal-nft", 1, 8, 2.0, 1.0, [1.0, 2.0]),
        run("equal-nft", 2, 8, 2.0, 1.0, [1.0, 2.1]),
        run("sol_rl-fp8", 2, 48, 3.0, 1.0, [1.0]),
        {"name": "sft", "ranks": 2, "failed": "ranks ended with [1, None]"},
    ]
    found = scale.summary(runs)
    assert found["efficiency"] == {"hsdp on 2": {"step": 0.8, "time/train": 0.5}}
    assert found["losses"] == {
        "equal-nft on 2": {"largest_relative_difference": pytest.approx(0.05), "holds": False},
    }
    assert found["sol_rl"]["seconds_for_1152_trained_computed"] == 24 * (3.0 + 1.0 * 2)
    assert "ranks ended with [1, None]" in scale.table(runs)


def test_the_benchmark_of_memory_predicts_every_configuration_it_is_asked_for(tmp_path):
    # On a CPU nothing is measured; small cards are not stood for.
    memory = loaded("memory")
    only = ["card-24-nft", "sft-lora-selective"]
    assert not memory.main(["--tiny", "--steps", "1", "--only", *only, "--write", str(tmp_path)])
    card, selective = written(tmp_path)
    assert selective["plan"].startswith("memory plan (as_written): checkpointing selective, mini_batch 8")
    assert card["predicted_gib"]["phases"]["rollout: decoding"] > 0.5  # the allowance for a reward model
    assert "measured_gib" not in card


def test_stages_of_the_other_families(tmp_path):
    # Reference for the shares: by hand from the figures of the runs.
    bench = loaded("families_full_size")
    only = ["sd3-m-nft-baseline", "sd3-l-nft-baseline", "flux1-sft-lora-baseline"]
    assert not bench.main(["--tiny", "--only", *only, "--write", str(tmp_path)])
    runs = written(tmp_path)
    assert [(run["name"], run["model"], run["samples_a_step"]) for run in runs] == [
        ("sd3-m-nft-baseline", "sd3-m", 24),
        ("sd3-l-nft-baseline", "sd3-l", 4),
        ("flux1-sft-lora-baseline", "flux1", 2),
    ]
    twice = [{**runs[0], "name": "sd3-m-nft", "ms_a_sample": 2 * runs[0]["ms_a_sample"]}, runs[0]]
    assert bench.ratios(twice) == {"sd3-m-nft": {"inner_step": 1.0, "step": 2.0, "rollout": 1.0}}


def test_where_values_stop_being_finite_is_found(monkeypatch, capsys):
    # A block that gives infinities is the first place that is named; without one no place is.
    from diffusers.models.transformers.transformer_flux import FluxSingleTransformerBlock as Block

    bench = loaded("families_full_size")
    arguments = ["--tiny", "--probe", "--only", "flux1-sft-lora-baseline"]
    assert bench.main(arguments) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["first_not_finite"] == []
    forward = Block.forward
    monkeypatch.setattr(Block, "forward", lambda *a, **n: tuple(x / 0 for x in forward(*a, **n)))
    assert bench.main(arguments) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["first_not_finite"][0] == "single_transformer_blocks.0:0"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([{"loss": 1.0}], "ended after 1 of 2 steps"),
        ([{"loss": 1.0}, {"skipped_steps": 1.0}], r"steps \[2\] were left out"),
    ],
)
def test_a_run_that_is_not_whole_gives_no_figures(lines, said):
    bench = loaded("full_size")
    bench.complete([{"loss": 1.0}] * 2, 2)
    with pytest.raises(RuntimeError, match=said):
        bench.complete(lines, 2)
