"""The command line. Each command lives in its own module and imports what is heavy only when it runs."""

import sys
from importlib import import_module

import typer

from sanarl.errors import UserError

COMMANDS = ("train", "sample", "evaluate", "report", "export", "validate", "doctor", "presets", "dataset", "reward")
"""Modules of this package with ``register(app)``, in the order of --help."""

app = typer.Typer(
    help="Post-train SANA image and video diffusion models from one TOML preset.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

for _name in COMMANDS:
    import_module(f"sanarl.cli.{_name}").register(app)


def main() -> None:
    """Run; what the user can mend goes to stderr without a traceback, with exit code 2 (1: a service stayed away)."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
