"""sanarl reward serve, score, bench: rewards as a service, and rewards for people."""

from pathlib import Path
from typing import Annotated

import typer


def serve(
    config: Annotated[Path, typer.Option(help="TOML of the service, in Cosmos-RL's format.")],
    host: Annotated[str | None, typer.Option(help="Address to bind instead of the file's.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind instead of the file's; 0: any that is free.")] = None,
) -> None:
    """Score pictures for trainers until SIGTERM; then finish what was accepted.

    The token that requests must carry is read from REMOTE_REWARD_TOKEN.
    """
    import os

    from sanarl.errors import UserError
    from sanarl.rewards.server import settings

    loaded = settings.load(config, host=host, port=port)
    try:
        from sanarl.rewards.server.run import run
    except ModuleNotFoundError as error:
        raise UserError(f"sanarl reward serve needs {error.name}: pip install 'sanarl[serve]'") from error
    raise typer.Exit(run(loaded, os.environ.get("REMOTE_REWARD_TOKEN", "")))


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(serve)
