"""How much a command says."""

from typing import Annotated

import typer

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only what went wrong.")]
