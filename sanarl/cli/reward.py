"""sanarl reward: what scores pictures, and the weights that this needs."""

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

MODULES: tuple[str, ...] = ("reward_serve",)
"""Modules of this package with ``register(reward)``, in the order of --help."""

reward = typer.Typer(help="Rewards: their weights, and the service that scores.", no_args_is_help=True)


@reward.command("list")
def list_rewards() -> None:
    """Name every reward with its weights and where they lie on this machine."""
    from sanarl.cli.voice import columns
    from sanarl.rewards import TABLE
    from sanarl.rewards.weights import found, needed

    rows: list[tuple[str, str]] = []
    for name in TABLE:
        lines = [f"{one.repo}: {found(one, name) or 'missing'}" for one in needed(name)] or ["needs no weights"]
        rows += [(name if number == 0 else "", line) for number, line in enumerate(lines)]
    columns(rows, ("bold", ""))


@reward.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A reward, as in `sanarl reward list`.")],
    to: Annotated[
        Path | None, typer.Option(help="Folder to write into, such as reward_ckpts; the hub's cache.")
    ] = None,
) -> None:
    """Download the weights of a reward and check their hashes; one line a file.

    They go into the hub's cache unless --to names a folder.
    """
    from sanarl.rewards.fetching import fetch as bring

    bring(name, to)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for name in MODULES:
        import_module(f"sanarl.cli.{name}").register(reward)
    app.add_typer(reward, name="reward")
