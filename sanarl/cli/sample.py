"""sanarl sample: pictures and clips of a run or a model."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from sanarl.cli import asked as options
from sanarl.cli.voice import Quiet, Verbose


def sample(
    run: Annotated[Path | None, typer.Option(help="A run's folder.", rich_help_panel=options.MODEL)] = None,
    model: Annotated[
        str | None, typer.Option(help="A hub id, a folder, or tiny-image.", rich_help_panel=options.MODEL)
    ] = None,
    lora: options.Lora = None,
    step: options.Step = None,
    prompt: Annotated[list[str] | None, typer.Option(help="A text; may be given several times.")] = None,
    prompts: Annotated[
        str | None,
        typer.Option(help="A file (.txt, .jsonl), SET or SET:SPLIT, or validation: the run's own held-out prompts."),
    ] = None,
    image: Annotated[Path | None, typer.Option(help="Picture that clips start from (image-to-video).")] = None,
    num_prompts: options.NumPrompts = None,
    num_samples: options.NumSamples = 1,
    compare: Annotated[bool, typer.Option("--compare", help="Base and trained side by side, same noise.")] = False,
    out: Annotated[Path, typer.Option(help="Folder to write into.")] = Path("samples"),
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
    """Draw pictures (PNG) or clips (mp4) that carry their settings inside."""
    from sanarl.errors import UserError
    from sanarl.using.subject import Asked

    changes = options.overrides(set_, steps, guidance, solver, flow_shift, size, frames, batch_size)
    asked = Asked(None if run is None else options.newest(run), model, lora, step, changes)
    if (prompts is None) == (not prompt):
        raise UserError("say what to draw: --prompt TEXT (as often as you like), or --prompts FILE or NAME")

    from sanarl.using import drawing, sampling, subject
    from sanarl.using import prompts as wanted

    subject.check(asked)
    subject.check_frames(asked, frames)
    texts = wanted.texts(prompt or []) if prompts is None else wanted.named(asked, prompts, num_prompts, dataset_module)
    texts = wanted.starting(asked, texts, image)
    opened = options.opened(asked)
    plan = drawing.drawing(opened, texts, num_samples, seed)
    files = sampling.sample(opened, plan, out, compare, lambda path: None if quiet else print(path))
    if not quiet:
        print(
            f"{len(plan)} sample(s) of {opened.model}, {opened.adapter or 'no adapter'}: {len(files)} files in {out}",
            file=sys.stderr,
        )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(sample)
