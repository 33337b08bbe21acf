"""The command line. Each command lives in its own module and imports what is heavy only when it runs."""

import sys
import traceback
from importlib import import_module
from typing import Annotated

import typer

from sanarl import __version__
from sanarl.cli import examples
from sanarl.cli.voice import is_verbose
from sanarl.errors import UserError

COMMANDS = ("train", "sample", "evaluate", "report", "export", "validate", "doctor", "presets", "dataset", "reward")
"""Modules of this package with ``register(app)``, in the order of --help."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for _name in COMMANDS:
    import_module(f"sanarl.cli.{_name}").register(app)
examples.show(app)


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Post-train SANA for pictures and video, Stable Diffusion 3.5 and FLUX.1 from one TOML preset.

    Every command has examples under its own --help. NO_COLOR turns colours off.
    """


def main() -> None:
    """Run; what the user can mend goes to stderr without a traceback, with exit code 2 (1: a service stayed away)."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except UserError as error:
        print(error, file=sys.stderr)
        if is_verbose():
            traceback.print_exc()
        sys.exit(error.exit_code)
