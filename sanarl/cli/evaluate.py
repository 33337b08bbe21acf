"""sanarl eval: scores of a run or a model, base against trained."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sanarl.cli import asked as options
from sanarl.cli import completion
from sanarl.cli.voice import Quiet, Verbose

if TYPE_CHECKING:
    from sanarl.using.subject import Asked


def evaluate(
    subject: Annotated[
        str, typer.Argument(metavar="RUN|MODEL", help="A run's folder, a hub id, a folder, tiny-image.")
    ],
    prompts: Annotated[
        str,
        typer.Option(help="A file (.txt, .jsonl), SET or SET:SPLIT; default: the run's own held-out prompts."),
    ] = "validation",
    rewards: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.rewards,
            help="Names with commas, or module:function; default: those of the run's evaluations.",
        ),
    ] = None,
    lora: options.Lora = None,
    step: options.Step = None,
    num_prompts: options.NumPrompts = None,
    num_samples: options.NumSamples = 1,
    base: Annotated[bool, typer.Option(help="Score the base as well, from the same noise.")] = True,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write into. Default: RUN/eval/ID, or eval/ID for a model.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON document on stdout.")] = False,
    dataset_module: options.Module = None,
    steps: options.Steps = None,
    guidance: options.Guidance = None,
    solver: options.Solver = None,
    flow_shift: options.FlowShift = None,
    size: options.Size = None,
    frames: options.Frames = None,
    batch_size: options.BatchSize = None,
    seed: options.Seed = None,
    set_: options.Set = None,
    quiet: Quiet = False,
    verbose: Verbose = False,  # noqa: ARG001  # its callback counts
) -> None:
    """Score samples: a table, result.json and scores.csv. Stopped, it goes on where it was with the same command."""
    changes = options.overrides(set_, steps, guidance, solver, flow_shift, size, frames, batch_size)
    asked = options.either(subject, lora, step, changes)

    from sanarl import rewards as scorers
    from sanarl.using import drawing, results, scoring
    from sanarl.using import prompts as wanted
    from sanarl.using import subject as subjects

    subjects.check(asked)
    subjects.check_frames(asked, frames)
    names = _rewards(asked, rewards)
    mix = scorers.build(dict.fromkeys(names, 1.0), {name: given for name, given in names.items() if given})
    texts = wanted.starting(asked, wanted.named(asked, prompts, num_prompts, dataset_module), None)
    opened = options.opened(asked)
    plan = drawing.drawing(opened, texts, num_samples, seed)
    what = scoring.plan(opened, plan, names, base)
    parent = opened.run.path if opened.run is not None else Path()
    folder = out if out is not None else parent / "eval" / what.digest
    say = (lambda _: None) if quiet else lambda line: print(line, file=sys.stderr)
    with scoring.Progress(folder, what) as progress:
        scored = scoring.score(opened, plan, mix, progress, say)
        found = results.summary(scored, plan, what)
        results.write(folder, found, scored, plan)
    if as_json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        _print_table(found, results)
        print(f"{found['interval']['level']:.0%} intervals: {found['interval']['method']}")
    say(f"written: {folder / 'result.json'}, {folder / 'scores.csv'}")


def _rewards(asked: "Asked", names: str | None) -> dict[str, dict[str, Any]]:
    """Name -> arguments: those of the run where it has some for a name."""
    from sanarl.errors import UserError
    from sanarl.training.rewarding import evaluation_rewards, local_arguments
    from sanarl.using.subject import configuration

    config = configuration(asked) if asked.run is not None else None
    if names is None:
        own = evaluation_rewards(config) if config is not None else ()
        if not isinstance(own, tuple) or not own:
            raise UserError(
                "--rewards: say what scores, such as --rewards pickscore,ocr (`sanarl reward list`); only a run whose "
                "evaluations are scored in its own process has rewards of its own"
            )
        return {name: dict(given) for name, _, given in own}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise UserError(f"--rewards: found {names!r}; accepted: names with commas between them")
    known = local_arguments(config) if config is not None else {}
    return {name: known.get(name, {}) for name in wanted}


def _print_table(found: dict[str, Any], results: Any) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    heading, *rows = results.lines(found)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in heading:
        table.add_column(name, no_wrap=True)
    styles = {1: "green", -1: "red", 0: ""}
    for row in rows:
        style = styles[results.moved(found["rewards"][row[0]])]
        table.add_row(*(Text(cell, style=style if place == 3 else "") for place, cell in enumerate(row)))
    console = Console(highlight=False, markup=False)
    console.width = max(console.width, 140)
    console.print(table)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("eval")(evaluate)
