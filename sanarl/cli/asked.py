"""What the commands that use a model share: how it is named, and what can be said about its sampling."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sanarl.using.subject import Asked, Subject

LARGEST = 8192
"""Pixels of a side, as in the configuration."""
MODEL = "Model"
HOW = "Sampling (unset: as the run evaluates, or as the model's preset says)"

Lora = Annotated[
    Path | None, typer.Option(help="An adapter, a file or folder of diffusers or PEFT.", rich_help_panel=MODEL)
]
Step = Annotated[
    str | None,
    typer.Option(help="Of a run: best, last, or a number. Default: the best where it is known.", rich_help_panel=MODEL),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the configuration.", rich_help_panel=HOW),
]
Steps = Annotated[int | None, typer.Option(min=1, max=1000, help="Solver steps.", rich_help_panel=HOW)]
Guidance = Annotated[float | None, typer.Option(help="Guidance scale; 1 is none.", rich_help_panel=HOW)]
Solver = Annotated[str | None, typer.Option(help="euler or dpm2.", rich_help_panel=HOW)]
FlowShift = Annotated[float | None, typer.Option(help="Shift of the schedule.", rich_help_panel=HOW)]
Size = Annotated[str | None, typer.Option(metavar="WxH", help="Width x height in pixels.", rich_help_panel=HOW)]
Frames = Annotated[int | None, typer.Option(help="Frames of a clip, 4k + 1.", rich_help_panel=HOW)]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Samples drawn at once.", rich_help_panel=HOW)]
Seed = Annotated[int | None, typer.Option(min=0, help="Of the noise. Default: the run's.", rich_help_panel=HOW)]
NumPrompts = Annotated[int | None, typer.Option(min=1, help="Only the first of --prompts.")]
NumSamples = Annotated[int, typer.Option(min=1, help="Samples of a prompt.")]
Module = Annotated[str | None, typer.Option(help="Of a run that was started with its own.")]


def overrides(
    set_: list[str] | None,
    steps: int | None,
    guidance: float | None,
    solver: str | None,
    flow_shift: float | None,
    size: str | None,
    frames: int | None,
    batch_size: int | None,
) -> tuple[str, ...]:
    """The options as ``key.path=value``.

    Raises:
        UserError: when the size is none.
    """
    from sanarl.errors import UserError

    sample = "policy.diffusers.sample"
    found = list(set_ or ())
    if steps is not None:
        found += [f"{sample}.num_steps={steps}", f"{sample}.eval_num_steps={steps}"]
    if guidance is not None:
        found.append(f"{sample}.guidance_scale={float(guidance)}")
    if solver is not None:
        found.append(f"{sample}.solver={json.dumps(solver)}")
    if flow_shift is not None:
        found.append(f"{sample}.flow_shift={float(flow_shift)}")
    if size is not None:
        width, by, height = size.lower().partition("x")
        if not (by and width.isdecimal() and height.isdecimal()):
            raise UserError(f"--size: found {size!r}; accepted: WIDTHxHEIGHT in pixels, such as 1024x1024")
        if any(int(side) % 32 or not 32 <= int(side) <= LARGEST for side in (width, height)):
            raise UserError(
                f"--size: found {size!r}; accepted: multiples of 32, as the models' autoencoders ask, up to {LARGEST}"
            )
        found.append(f"policy.diffusers.inference_size=[{height}, {width}]")
    if frames is not None:
        found.append(f"policy.diffusers.inference_frames={frames}")
    if batch_size is not None:
        found.append(f"validation.batch_size={batch_size}")
    return tuple(found)


def newest(path: Path) -> Path:
    """A run's folder as it is; of a folder of runs the newest one, with a line that says so."""
    if (path / "config.json").is_file() or (path / "model_index.json").is_file():
        return path
    runs = sorted(path.glob("*/config.json"), key=lambda file: file.stat().st_mtime)
    if not runs:
        return path
    print(f"{path} holds {len(runs)} run(s); taking the newest, {runs[-1].parent.name}", file=sys.stderr)
    return runs[-1].parent


def either(name: str, lora: Path | None, step: str | None, changes: tuple[str, ...]) -> "Asked":
    """A run or a model, whichever the name is.

    Raises:
        UserError: when it is a folder with neither.
    """
    from sanarl.errors import UserError
    from sanarl.using.subject import Asked

    folder = newest(Path(name))
    is_model = (folder / "model_index.json").is_file()
    if folder.is_dir() and not is_model and not (folder / "config.json").is_file():
        raise UserError(
            f"{name}: holds neither a run (config.json) nor a model of diffusers (model_index.json); a run's folder is "
            "the one with the time as its name"
        )
    run = folder if folder.is_dir() and not is_model else None
    return Asked(run, None if run is not None else name, lora, step, changes)


def opened(asked: "Asked") -> "Subject":
    """Load what was named, on the device that there is, with a remark when its samples are not of a size it knows."""
    from sanarl.runtime.world import World
    from sanarl.training.fitting import stretched
    from sanarl.using import subject

    found = subject.opened(asked, World.start().device)
    if (remark := stretched(found.policy.model, found.config)) is not None:
        print(remark, file=sys.stderr)
    return found
