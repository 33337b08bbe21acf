"""How much a command says, and in what form: quiet, verbose, tables with or without colour."""

from collections.abc import Sequence
from typing import Annotated

import typer

_SAID = {"verbose": False}


def _remember(value: bool) -> bool:
    _SAID["verbose"] = value
    return value


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only results, warnings and what went wrong.")]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", callback=_remember, help="More numbers; under an error, where it came from."),
]


def is_verbose() -> bool:
    """Whether the command that is running was asked for more."""
    return _SAID["verbose"]


def columns(rows: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
    """Print rows in columns, a line each however wide; coloured on a terminal that takes colours.

    Args:
        rows: Of as many cells as there are styles.
        styles: Of the columns, in rich's words; an empty one is plain.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, soft_wrap=True)
    widths = [max(len(row[place]) for row in rows) for place in range(len(styles))]
    for row in rows:
        line = Text()
        for place, (cell, style) in enumerate(zip(row, styles, strict=True)):
            last = place == len(styles) - 1
            line.append(cell, style)
            line.append("" if last else " " * (widths[place] - len(cell) + 2))
        line.rstrip()
        console.print(line)
