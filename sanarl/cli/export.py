"""sanarl export: a run's values for diffusers or PEFT."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from sanarl.cli import asked as options
from sanarl.cli.voice import Quiet, Verbose


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    to: Annotated[str, typer.Option(help="diffusers or peft.")] = "diffusers",
    step: options.Step = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write into. Default: RUN/export/TO_step_N.")] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,  # noqa: ARG001  # its callback counts
) -> None:
    """Export what was trained, load it again, and compare its predictions with the run's and the base's."""
    from sanarl.errors import UserError
    from sanarl.using.subject import Asked, check, opened

    if to not in ("diffusers", "peft"):
        raise UserError(f"--to: found {to!r}; accepted: diffusers or peft")
    run = options.newest(run)
    asked = Asked(run, None, None, step, ())
    check(asked)

    from sanarl.runtime.world import World
    from sanarl.using.exporting import exported

    subject = opened(asked, World.start().device)
    folder = out if out is not None else run / "export" / f"{to}_step_{subject.step}"
    proof = exported(subject, to, folder)
    if not quiet:
        print(
            f"loaded again: velocity {proof.error:.2e} from the run's (accepted {proof.tolerance:g}), "
            f"{proof.effect:.2e} from the base's",
            file=sys.stderr,
        )
        print(folder)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(export)
