"""sanarl report: what runs have done, as one page."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs; several are compared.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page. Default: report.html in the first run's folder.")
    ] = None,
    png: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the curves as PNG files into this folder as well.")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Follow running jobs: serve the page to this machine until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port of --serve on 127.0.0.1; 0: any that is free.")] = 8770,
) -> None:
    """Write one HTML page about one run, or about several side by side; it needs no network.

    A folder that holds runs, such as train.output_dir, stands for the newest of them.
    """
    from sanarl.report.reading import resolve

    folders = []
    for path in runs:
        folder, remark = resolve(path)
        if remark is not None:
            print(remark, file=sys.stderr)
        folders.append(folder)
    if png is not None:
        from sanarl.report import png as plots
        from sanarl.report.document import document

        files = plots.write(document(folders), png)
        print(f"{len(files)} plots: {png}")
    if serve:
        _serve(folders, port)
        return
    from sanarl.report.page import write

    path = out or folders[0] / "report.html"
    size = write(folders, path)
    print(f"{path} ({size / 1e6:.1f} MB)")


def _serve(folders: list[Path], port: int) -> None:
    from sanarl.report.serve import HOST, server

    with server(folders, port) as made:
        print(f"http://{HOST}:{made.server_port}/  (Ctrl-C ends it)", flush=True)
        try:
            made.serve_forever()
        except KeyboardInterrupt:
            print("", file=sys.stderr)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(report)
