"""sanarl dataset: look at folders of media, make them uniform, fetch prompt sets."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sanarl.config import Config
    from sanarl.data.findings import Findings
    from sanarl.data.folder import View

Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of --config.")]
Preset = Annotated[str | None, typer.Option("--config", help="Read as the run of this TOML file or preset would.")]
Keys = Annotated[list[str] | None, typer.Option("--caption-key", help="Name of the caption in json and tables.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Bad = Annotated[str | None, typer.Option("--on-bad", help="error or skip: what becomes of files that cannot be used.")]

dataset = typer.Typer(help="Data: check a folder, prepare one, fetch prompt sets.", no_args_is_help=True)


@dataset.command()
def check(
    folder: Annotated[Path, typer.Argument(help="A folder of captioned pictures or videos.")],
    config: Preset = None,
    set_: Set = None,
    caption_key: Keys = None,
    on_bad: Bad = None,
    as_json: AsJson = False,
) -> None:
    """Decode every file as training would before its first step: counts, sizes, lengths, captions, copies, faults.

    Exit code 2 when something is wrong with the folder, unless --on-bad skip. The second time only what changed is
    decoded.
    """
    from sanarl.data.check import check as look

    loaded = _config(config, set_)
    view, keys = _view_and_keys(loaded, caption_key)
    policy = _on_bad(on_bad, loaded)
    with _bar("checked") as seen:
        found = look(folder, view, keys, seen)
    if as_json:
        print(json.dumps({"folder": str(folder), "found": [one.document() for one in found]}, indent=2))
    for one in found:
        for line in _lines(one):
            print(line, file=sys.stderr if as_json else sys.stdout)
    from sanarl.data.prompts import fault_page

    faults = [fault for one in found for fault in one.faults]
    good = sum(one.good for one in found)
    if not good or (faults and policy == "error"):
        what = f"{folder}: {len(faults)} faults" if faults else f"{folder}: found no captioned picture or video"
        print(fault_page(what, faults), file=sys.stderr)
        raise typer.Exit(2)


@dataset.command()
def prepare(
    src: Annotated[Path, typer.Argument(help="A folder of captioned pictures or videos; it is only read.")],
    out: Annotated[Path, typer.Option("--out", help="The folder to make; a second call continues or does nothing.")],
    config: Preset = None,
    set_: Set = None,
    size: Annotated[
        str | None, typer.Option(help="HEIGHTxWIDTH to crop to, never stretched. Default: as it is.")
    ] = None,
    buckets: Annotated[
        str | None, typer.Option(help="auto: sizes of about that area and many aspects; or a list H1xW1,H2xW2,...")
    ] = None,
    frames: Annotated[
        int | None, typer.Option(help="Make clips of this many frames, 4k + 1. Default: pictures.")
    ] = None,
    fps: Annotated[float | None, typer.Option(help="Frames of a second of a clip. Default: 16.")] = None,
    short: Annotated[str | None, typer.Option(help="Of shorter videos: error, skip, loop or pad.")] = None,
    alpha: Annotated[str | None, typer.Option(help="Colour behind transparency. Default: #ffffff.")] = None,
    caption_key: Keys = None,
    on_bad: Bad = None,
    split: Annotated[float, typer.Option(help="Share that goes to OUT/test, the rest to OUT/train.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Make the flat folder that every loader reads: NNNNNN.json beside NNNNNN.jpg or .mp4, manifest and report."""
    from sanarl.cli.dataset_options import Given, settings
    from sanarl.data.prepare import prepare as make

    given = Given(size, buckets, frames, fps, short, alpha, caption_key, on_bad, split)
    wanted = settings(given, _config(config, set_))
    with _bar("prepared") as seen:
        outcome = make(src, out, wanted, seen)
    report = outcome.report
    if as_json:
        print(json.dumps({"out": str(out), "made": outcome.made, "unchanged": outcome.unchanged, **report}, indent=2))
        return
    parts = ", ".join(f"{n} in {name}" for name, n in report["parts"].items())
    print(f"{out}: {report['kept']} kept{f' ({parts})' if parts else ''}, {sum(report['skipped'].values())} skipped")
    for kind, count in report["skipped"].items():
        print(f"  {count} {kind}, for example: {next(one['why'] for one in report['why'] if one['kind'] == kind)}")
    if report["left_out"]:
        counts = ", ".join(f"{n} {kind}" for kind, n in report["left_out"].items())
        print(f"  left out, as none of ours: {counts}")
    print("nothing to do: all of it was there" if outcome.unchanged else f"{outcome.made} made now")


@dataset.command()
def fetch(
    name: Annotated[str | None, typer.Argument(help="A prompt set; without one, all are listed.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write into. Default: the cache.")] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="The file that a set is made of, when you have it (vidprom)."),
    ] = None,
) -> None:
    """Fetch a prompt set for reinforcement learning, checked by size and SHA-256, or make it by its recipe."""
    from sanarl.data.fetch import SETS, bring

    if name is None:
        for known, one in SETS.items():
            print(f"{known:16} {one.what}; licence: {one.licence}")
        return
    with _bar("bytes fetched") as seen:
        lines = bring(name, out, source, seen)
    print("\n".join(lines))


def _config(name: str | None, overrides: list[str] | None) -> "Config | None":
    from sanarl.config import load
    from sanarl.errors import UserError

    if name is None:
        if overrides:
            raise UserError("--set overrides a key of --config; name a preset there")
        return None
    return load(name, overrides or ()).config


def _view_and_keys(config: "Config | None", caption_key: list[str] | None) -> "tuple[View | None, tuple[str, ...]]":
    keys = tuple(caption_key or (config.data.caption_keys if config else ("prompt",)))
    if config is None:
        return None, keys
    from sanarl.data import settings

    return settings.view(config), keys


def _on_bad(text: str | None, config: "Config | None") -> str:
    from sanarl.errors import UserError

    if text not in (None, "error", "skip"):
        raise UserError(f"--on-bad: found {text!r}; accepted: error, skip")
    return text or (config.data.on_bad if config else "error")


def _lines(found: "Findings") -> Iterator[str]:
    """A finding in words."""
    page: dict[str, Any] = found.document()
    unusable = ", ".join(f"{n} {kind}" for kind, n in page["unusable"].items())
    yield f"{page['usable']} {found.what} can be used{f'; not: {unusable}' if unusable else ''}"
    yield from (f"  {line}" for line in found.statistics())
    yield from (f"  {note}" for note in page["notes"])
    yield from (f"  left out: {fault}" for fault in page["skipped"][:10])


@contextmanager
def _bar(verb: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr when that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn(verb), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(verb, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(dataset, name="dataset")
