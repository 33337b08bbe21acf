"""sanarl train: run a preset."""

from typing import Annotated

import typer


def train(
    config: Annotated[str, typer.Option("--config", help="A TOML file, or the name of a preset.")],
    dataset_module: Annotated[
        str | None, typer.Argument(help="A dotted module or a .py file with get_dataset(config).")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key; the value is TOML.")
    ] = None,
    nproc: Annotated[str, typer.Option(help="Processes on this machine, or auto: one a GPU.")] = "1",
    resume: Annotated[str | None, typer.Option(help="auto, never or a run's folder; default: train.resume.")] = None,
) -> None:
    """Train what a preset says."""
    from sanarl.config import load
    from sanarl.train import build

    build.main(load(config, set_ or ()), dataset_module, nproc, resume)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(train)
