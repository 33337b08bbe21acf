"""Writes docs/metrics.md from the table of names: ``python -m sanarl.report.docs [--check]``."""

import sys
from pathlib import Path

from sanarl.report.names import METRICS

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"

_TEXT = """\
# Metrics and trackers

<!-- Written by `python -m sanarl.report.docs`; edit sanarl/report/names.py and docs.py instead. -->

Names are stable: one that changes is a breaking change, and a test pins them. `*` stands for the name of a scorer,
or of one of its further scores (`reward/shapes/strict`).

| metric | meaning |
|---|---|
{rows}
Metrics of a step are averages over its optimiser steps; `skipped_steps` is a count.

## Where they go
| `logging.logger` | what it gets |
|---|---|
| (always) | `metrics.jsonl`: a JSON object a line and step; what is not finite stands there as `NaN` or `Infinity` |
| `console` | a line every `logging.log_interval` steps, after evaluations and after the last step |
| `wandb` | every step's metrics over `step`, the configuration, sheets, clips and a table of samples |
| `tensorboard` | the same as scalars, text and images, in `tensorboard/` of the run's folder |

- **wandb** has the pictures `samples` (sheets of evaluations) and `rollout`, the videos `sample_clips` and
  `rollout_clips`, and the table `sample_rewards` (step, prompt, sample, reward). Without a login it is offline, and
  the log has the line that uploads later. A resumed run keeps its id (`wandb_id` in the run's folder); steps that
  it makes again stand there twice, with the same values, because wandb deletes nothing.
- **TensorBoard** comes with `pip install 'sanarl[tensorboard]'`. A resumed run purges the steps that it makes
  again. It plays no mp4: clips are named, and the sheets show their frames.

`logging.multi_modal_log_interval = N` writes `samples/rollout_STEP.png`, the first group of every Nth rollout with
its rewards, and hands it to the trackers. Every evaluation has its sheet and single samples in any case.

## Files of a run that reports read
| file | holds |
|---|---|
| `metrics.jsonl` | see above |
| `rewards.jsonl` | rewards by prompt: a line for every rollout (`"of": "train"`) and evaluation (`"eval"`) |
| `events.jsonl` | when, where, with which versions and by which command the run started, and how it ended |
| `samples/step_N/index.json` | file, prompt and reward of every held-out sample |

In `rewards.jsonl` `prompt` numbers the prompts, whose texts stand under `new` in the line that names them first;
`size`, `mean` and `std` are of their rewards, and `parts` has every scorer's means where there are several.

A run that goes on from a checkpoint drops the lines of later steps, so no step stands there twice.

## perf/tflops and perf/mfu
`logging.report_mfu = true` counts, for every pass of the transformer, the operations of its forward pass: W in
linear layers and convolutions, A in attention, from the shape of the latents and the tokens of text
(`models/flops.py`, checked by hand in `tests/models/test_flops.py`; steps with gradients are checked there against
torch's `FlopCounterMode`).

    FLOPs of a step = sum over passes of samples x  W + A    without gradients
                                                    2W + 3A  with gradients of an adapter
                                                    3W + 3A  with gradients of all weights
    perf/tflops     = FLOPs of a step / ranks / time/step / 1e12
    perf/mfu        = perf/tflops / peak

Adapter, autoencoder, text encoder and rewards do not count, nor what gradient checkpointing computes again, while
`time/step` holds all of it. The peak is that of the data sheet (dense, at `train.param_dtype`), and on CPUs and other
devices the fastest of a few 1024 x 1024 matrix products measured at the start; the log says which.
"""


def page() -> str:
    """The whole document."""
    rows = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in METRICS.items())
    return _TEXT.replace("{rows}", rows)


def main(arguments: list[str]) -> int:
    """Write the page, or with --check say whether the page on disk is this one."""
    if "--check" in arguments:
        fresh = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page()
        print(f"{PAGE.name}: {'as the table says' if fresh else 'differs from the table: run this without --check'}")
        return 0 if fresh else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
