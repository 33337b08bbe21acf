"""The tables of docs/performance.md that results on a card fill: ``python benchmarks/tables.py [--check]``.

Each lies between two comments that name it. A table whose results are not there says so.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
TIMESTEPS = 9
"""Of ten, that sana-image-nft trains."""
Result = dict[str, Any]


def newest(pattern: str) -> Result | None:
    """The newest result on a card that fits, by the date in its name; of one day that of the most ranks."""
    found = [file for file in RESULTS.glob(pattern) if "_cpu_" not in file.name]
    file = max(found, key=lambda file: (file.stem[-10:], file.name), default=None)
    return None if file is None else json.loads(file.read_text(encoding="utf-8"))


def rows(lines: list[list[object]]) -> str:
    """A table; the first line is its head."""
    head, *body = [[str(cell) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *body))


def about(result: Result) -> str:
    """Where figures come from."""
    return f"{result['card']}, torch {result['versions']['torch']}, {result['date']}; weights {result['weights']}.\n\n"


def whole_step(run: Result) -> float:
    """Milliseconds of a sample's step with all timesteps that the preset trains; of others as it is."""
    inner = run["ms_trained_a_sample_and_timestep"]
    return run["ms_a_sample"] + (inner * (TIMESTEPS - run["timesteps"]) if "nft" in run["name"] else 0.0)


def train(result: Result) -> str:
    """Every variant of benchmarks/train.py that took steps."""
    shares, matmul = result["shares_of_the_baseline"], result["matmul_tflops"]
    lines: list[list[object]] = [
        ["variant", "ms a trained sample (and timestep)", "share", "whole step, ms a sample", "share", "TFLOP/s", "GiB"]
    ]
    for run in result["runs"]:
        if "medians" not in run:
            continue
        share = shares.get(run["name"], {})
        tflops = f"{run['trained_tflops_a_rank']:.0f}"
        tflops += f" ({run['trained_tflops_a_rank'] / matmul:.0%})" if matmul else ""
        lines.append(
            [
                f"`{run['name']}`",
                f"{run['ms_trained_a_sample_and_timestep']:.1f}",
                share.get("inner_step", ""),
                f"{whole_step(run):.0f}",
                share.get("whole_step", ""),
                tflops,
                max(run["memory_peak_gib"]),
            ]
        )
    return f"{about(result)}{rows(lines)}"


def cost(result: Result) -> str:
    """What a trained sample of sana-image-nft costs, of what was measured."""
    lines: list[list[object]] = [["variant", "rollout and decoding, ms", "training, ms", "all, ms", "samples an hour"]]
    for run in result["runs"]:
        if "medians" in run and run["name"].startswith("nft"):
            training = run["ms_trained_a_sample_and_timestep"] * TIMESTEPS
            rollout = 1e3 * run["medians"]["time/rollout"] / run["samples_a_step"]
            everything = whole_step(run)
            hour = f"{round(3.6e6 / everything, -2):,.0f}"
            lines.append([f"`{run['name']}`", f"{rollout:.0f}", f"{training:.0f}", f"{everything:.0f}", hour])
    return rows(lines)


def inner_loop(result: Result) -> str:
    """Whether the host waits."""
    lines: list[list[object]] = [
        ["inner loop of", "operations that wait", "host done after, s", "card done after, s", "card busy"]
    ]
    for run in result["runs"]:
        if "host_s" in run:
            waits = len(run["synchronising_operations"])
            lines.append([run["preset"], waits, run["host_s"], run["device_s"], f"{run['device_busy']:.0%}"])
    return rows(lines)


def resume(result: Result) -> str:
    """Whether broken runs end as others."""
    lines: list[list[object]] = [["", "resumed and whole run apart", "two whole runs apart", "norm of the values"]]
    for run in result["runs"]:
        if "distance_of_values" in run:
            apart = run["distance_of_values"]
            lines.append([f"`{run['name']}`", *(f"{apart[k]:.3g}" for k in ("resumed", "run_again", "their_norm"))])
    return rows(lines)


def scale(result: Result) -> str:
    """Every variant of benchmarks/scale.py by its ranks."""
    lines: list[list[object]] = [
        [
            "variant",
            "GPUs",
            "samples",
            "step, s",
            "samples/s",
            "efficiency",
            "an hour",
            "summing gradients, ms",
            "GiB a GPU",
        ]
    ]
    for run in result["runs"]:
        if "medians" not in run or run["name"].startswith("equal-"):
            continue
        efficiency = result["efficiency"].get(f"{run['name']} on {run['ranks']}", {}).get("step")
        lines.append(
            [
                f"`{run['name']}`",
                run["ranks"],
                run["samples_a_step"],
                f"{run['medians']['time/step']:.2f}",
                f"{run['samples_a_second']:.2f}",
                "" if efficiency is None else f"{efficiency:.1%}",
                hourly(run),
                run.get("gradient_sum_ms", ""),
                max(run["memory_peak_gib"]),
            ]
        )
    return f"{about(result)}{rows(lines)}"


def hourly(run: Result) -> str:
    """Samples an hour with all timesteps of sana-image-nft."""
    if not run["name"].startswith("nft"):
        return ""
    medians = run["medians"]
    step = medians["time/step"] + medians["time/train"] * (TIMESTEPS / run["timesteps"] - 1)
    return f"{round(3600 * run['samples_a_step'] / step, -2):,.0f}"


def losses(result: Result) -> str:
    """How far losses on several ranks are from those on one."""
    lines: list[list[object]] = [["the same samples", f"largest difference (accepted {result['tolerance_of_losses']})"]]
    lines += [[name, f"{found['largest_relative_difference']:.2g}"] for name, found in result["losses"].items()]
    return rows(lines)


def dreambooth(result: Result) -> str:
    """benchmarks/dreambooth.py."""
    lines: list[list[object]] = [["run", "images/s", "GiB"]]
    for run in result["runs"]:
        if "failed" not in run:
            lines.append([f"`{run['name']}`", f"{run['images_a_second']:.2f}", f"{run['peak_gib']:.1f}"])
    ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in result["times_as_fast"].items())
    return f"{about(result)}{rows(lines)}\n\nTimes as fast: {ratios}."


TABLES: dict[str, tuple[str, str, Callable[[Result], str]]] = {
    "train": ("train_*.json", "benchmarks/train.py", train),
    "cost": ("train_*.json", "benchmarks/train.py --only nft-baseline nft", cost),
    "inner-loop": ("train_*.json", "benchmarks/train.py --only inner-loop inner-loop-sft", inner_loop),
    "resume": ("train_*.json", "benchmarks/train.py --only resume resume-free", resume),
    "scale": ("scale_*.json", "benchmarks/scale.py", scale),
    "losses": ("scale_*.json", "benchmarks/scale.py", losses),
    "dreambooth": ("dreambooth_*.json", "benchmarks/dreambooth.py SCRIPT", dreambooth),
}
"""Name -> (files, what makes them, what makes the table)."""


def filled(text: str) -> str:
    """The page with all its tables."""
    for name, (pattern, command, table) in TABLES.items():
        result = newest(pattern)
        found = "" if result is None else table(result)
        if len(found.strip().splitlines()) < 3:
            found = f"*Not measured on a card yet: `{command}`.*"
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        between = re.compile(f"{begin}.*?{end.strip()}", re.DOTALL)
        text = between.sub(lambda _, new=f"{begin}{found}{end}": new, text)
    return text


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when the page is not as results say")
    asked = parser.parse_args(arguments)
    before = PAGE.read_text(encoding="utf-8")
    after = filled(before)
    if not asked.check:
        PAGE.write_text(after, encoding="utf-8")
        return 0
    if before != after:
        print(f"{PAGE} is not as the results say; run python benchmarks/tables.py", file=sys.stderr)
    return before != after


if __name__ == "__main__":
    sys.exit(main())
