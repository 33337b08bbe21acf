"""sanarl train: run a preset."""

import signal
from typing import Annotated

import typer

from sanarl.cli.completion import configurations, dataset_modules
from sanarl.cli.voice import Quiet, Verbose


def train(
    config: Annotated[
        str, typer.Option("--config", autocompletion=configurations, help="A TOML file, or the name of a preset.")
    ],
    dataset_module: Annotated[
        str | None,
        typer.Argument(autocompletion=dataset_modules, help="A dotted module or a .py file with get_dataset(config)."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key; the value is TOML.")
    ] = None,
    nproc: Annotated[
        str | None,
        typer.Option(help="Processes on this machine, or auto: one a GPU. Default: NPROC_PER_NODE, else 1."),
    ] = None,
    nnodes: Annotated[int, typer.Option(help="Machines of this run, each with as many processes.")] = 1,
    rdzv: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where they meet: the first machine and a free port of it.")
    ] = None,
    node_rank: Annotated[
        int | None, typer.Option(help="Number of this machine, from 0. Default: SLURM_NODEID.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="auto, never, a run's folder or a checkpoint. Default: train.resume.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build everything, measure a step, print the plan; keep nothing.")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train what a preset says. Exits with 130 after Ctrl-C and 143 after SIGTERM, with a checkpoint saved."""
    from sanarl.config import load

    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # nothing to save yet; the run listens once it is there
    loaded = load(config, set_ or ())  # before anything heavy is imported

    from sanarl.runtime.console import Voice
    from sanarl.training import launch
    from sanarl.training.nodes import Nodes

    nodes = Nodes.asked(nnodes, rdzv, node_rank)
    voice: Voice = "quiet" if quiet else "verbose" if verbose else "normal"
    raise typer.Exit(launch.main(loaded, dataset_module, nproc, resume, dry_run, voice, nodes))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(train)
