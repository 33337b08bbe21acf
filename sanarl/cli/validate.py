"""sanarl validate: is a file usable, and what becomes of its keys."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sanarl.cli.completion import configurations

if TYPE_CHECKING:
    from sanarl.config import Fault, Loaded, Note


@dataclass(frozen=True)
class Verdict:
    """What became of one file."""

    file: str
    loaded: "Loaded | None"
    faults: "tuple[Fault, ...]" = ()

    @property
    def notes(self) -> "tuple[Note, ...]":
        """What a valid file should be read with."""
        return self.loaded.notes if self.loaded is not None else ()

    def document(self) -> dict[str, Any]:
        """For --json."""
        config = self.loaded.config if self.loaded is not None else None
        return {
            "file": self.file,
            "valid": config is not None,
            "task": config.task if config is not None else None,
            "model": config.policy.model_name_or_path if config is not None else None,
            "notes": [asdict(note) for note in self.notes],
            "faults": [asdict(fault) for fault in self.faults],
        }


def validate(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=configurations, help='TOML files, names of presets, or "presets" for all that are shipped.'
        ),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key; the value is TOML.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    keys: Annotated[bool, typer.Option("--keys", help="Print every key that is known and what becomes of it.")] = False,
) -> None:
    """Check configurations without starting anything. Exit code 2 when one cannot be used."""
    from sanarl.errors import UserError

    if not files and not keys:
        raise UserError('sanarl validate: name a TOML file or a preset, or "presets" for all that are shipped')
    if keys:
        _print_keys(as_json)
    if not files:
        return
    verdicts = [_verdict(name, set_ or ()) for name in _expanded(files)]
    if as_json and not keys:
        print(json.dumps({"files": [verdict.document() for verdict in verdicts]}, indent=2))
    _print_verdicts(verdicts, to_stderr=as_json)
    for verdict in verdicts:
        for fault in verdict.faults:
            print(fault, file=sys.stderr)
    if any(verdict.loaded is None for verdict in verdicts):
        raise typer.Exit(2)


def _expanded(files: Sequence[str]) -> list[str]:
    from sanarl.config import preset_names

    return [name for file in files for name in (preset_names() if file == "presets" else [file])]


def _verdict(file: str, arguments: Sequence[str]) -> Verdict:
    from sanarl.cli import names
    from sanarl.config import ConfigError, load

    try:
        loaded = load(file, arguments)
        wrong = names.faults(loaded)
        return Verdict(file, None, tuple(wrong)) if wrong else Verdict(file, loaded)
    except ConfigError as error:
        return Verdict(file, None, error.faults)


def _print_verdicts(verdicts: list[Verdict], to_stderr: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("file", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("notes", overflow="fold")
    for verdict in verdicts:
        if verdict.loaded is None:
            count = len(verdict.faults)
            words, said = Text(f"{count} fault{'s' * (count != 1)}", style="red"), "below"
        else:
            words = Text(f"ok: {verdict.loaded.config.task}", style="green")
            said = "\n".join(f"{note.level}: {note.text}" for note in verdict.notes)
        table.add_row(Text(verdict.file), words, Text(said))
    longest = max(len(verdict.file) for verdict in verdicts)
    Console(stderr=to_stderr, width=max(Console().width, longest + 80)).print(table)


def _print_keys(as_json: bool) -> None:
    from sanarl.config.fates import table

    rows = table()
    if as_json:
        print(json.dumps({"keys": [asdict(row) for row in rows]}, indent=2))
        return
    width = max(len(row.key) for row in rows)
    for row in rows:
        print(f"{row.key:{width}}  {row.fate:17}  {row.detail}")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(validate)
