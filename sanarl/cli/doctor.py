"""sanarl doctor: is this machine ready, and what is missing."""

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sanarl.runtime.hardware import Devices
    from sanarl.runtime.inspection import Report

Row = tuple[str, str, bool | None, str]
"""Section, what, whether it is good (None: neither), words."""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Look at this machine: versions, devices, precisions, extras, logins. Exit code 2 when training is not possible.

    Nothing is downloaded and no network is used.
    """
    from pathlib import Path

    from sanarl.errors import UserError
    from sanarl.runtime.inspection import inspect

    try:
        folder = Path.cwd()
    except FileNotFoundError as error:  # MKL ends the whole process there
        raise UserError("sanarl doctor: the working directory is gone; change to one that exists") from error
    report = inspect(folder)
    if as_json:
        print(json.dumps(report.document(), indent=2))
    else:
        _print_table(report)
    if not report.ready:
        print("\n".join(["not ready:", *(f"  {problem}" for problem in report.problems)]), file=sys.stderr)
        raise typer.Exit(2)


def _rows(report: "Report") -> Iterator[Row]:
    yield "sanarl", report.version, None, report.location
    yield "Python", report.python, None, report.executable
    yield from ((one.section, one.name, one.ok, one.detail) for one in report.checks if one.section == "machine")
    yield from _device_rows(report.devices)
    for package in report.packages:
        asked = f" (asked: {package.needs})" if package.needs else ""
        detail = f"{package.found}{asked}" if package.state == "ok" else f"{package.state}: {package.reason}"
        yield "packages", package.name, package.state == "ok", detail
    for one in report.precisions:
        yield "precisions", f"{one.name} on {one.device}", one.works, one.reason or "works"
    for check in report.checks:
        if check.section != "machine":
            yield check.section, check.name, check.ok, check.detail
    for extra in report.extras:
        missing = ", ".join(f"{one.name} {one.state}" for one in extra.missing)
        detail = f"not installed: {missing}" if missing else f"installed: {', '.join(extra.packages)}"
        yield "extras", extra.name, True if extra.installed else None, detail


def _device_rows(devices: "Devices") -> Iterator[Row]:
    if not devices.gpus:
        yield "devices", "CPU only", None, devices.reason or ""
    for gpu in devices.gpus:
        if gpu.memory is None or gpu.free is None or gpu.capability is None:
            yield "devices", f"cuda:{gpu.index}", False, f"{gpu.name}: {gpu.reason}"
            continue
        size = f"{gpu.memory / 2**30:.1f} GiB, {gpu.free / 2**30:.1f} GiB free"
        yield "devices", f"cuda:{gpu.index}", True, f"{gpu.name}, {size}, compute capability {_dotted(gpu.capability)}"
    for name, version in (
        ("CUDA of torch", devices.torch_cuda),
        ("NVIDIA driver", devices.driver),
        ("NCCL", devices.nccl),
    ):
        if version is not None:
            yield "devices", name, None, version


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(str(part) for part in capability)


def _print_table(report: "Report") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("what", no_wrap=True)
    table.add_column("ok", no_wrap=True)
    table.add_column("detail", overflow="fold")
    marks = {True: Text("yes", style="green"), False: Text("no", style="red"), None: Text("-", style="dim")}
    above = ""
    for section, what, ok, detail in _rows(report):
        table.add_row(Text("" if section == above else section), Text(what), marks[ok], Text(detail))
        above = section
    console = Console(highlight=False, markup=False)
    console.width = max(console.width, 120)
    console.print(table)
    lines = [(one.name, one.install) for one in report.packages]
    lines += [(one.name, one.install) for one in report.extras]
    lines += [(one.name, one.install) for one in report.precisions]
    lines = [(name, line) for name, line in dict.fromkeys(lines) if line is not None]
    if lines:
        print("To install what is missing:")
    for name, line in lines:
        print(f"  {name}: {line}")  # never wrapped: it is there to be copied
    if report.ready:
        count = len(report.devices.gpus)
        print(f"ready: training is possible here, on {f'{count} GPU(s)' if count else 'the CPU'}")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)
