"""sanarl reward serve, score, bench: rewards as a service, and rewards for people."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torch import Tensor

    from sanarl.rewards.mix import Scores


def serve(
    config: Annotated[Path, typer.Option(help="TOML of the service, in Cosmos-RL's format.")],
    host: Annotated[str | None, typer.Option(help="Address to bind instead of the file's.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind instead of the file's; 0: any that is free.")] = None,
) -> None:
    """Score pictures for trainers until SIGTERM; then finish what was accepted.

    The token that requests must carry is read from REMOTE_REWARD_TOKEN. Exits with 0 when nothing accepted was lost.
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


def score(
    images: Annotated[list[Path], typer.Argument(help="Picture files.")],
    prompt: Annotated[str, typer.Option(help="What they should show.")],
    reward: Annotated[
        list[str] | None, typer.Option(help="A reward of `sanarl reward list` or your own; repeat for several.")
    ] = None,
    metadata: Annotated[str, typer.Option(help="What a dataset's item would say, as JSON.")] = "{}",
    remote: Annotated[bool, typer.Option("--remote", help="Ask the service of REMOTE_REWARD_ENQUEUE_URL.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Score picture files, here or by a service."""
    from sanarl.errors import UserError

    try:
        said = json.loads(metadata)
    except ValueError as error:
        raise UserError(f"--metadata: found {metadata!r}; accepted: a JSON object ({error})") from error
    if not isinstance(said, dict):
        raise UserError(f"--metadata: found {metadata!r}; accepted: a JSON object")
    names = reward or ["shapes"]

    from sanarl.data.media import decode_image

    pictures = [decode_image(image)[None] for image in images]  # (1, 3, H, W) each, of any size
    scores = _scores(names, pictures, prompt, said, remote)
    rows = [
        {"image": str(image), "scores": {name: float(values[0]) for name, values in one.parts.items()}}
        for image, one in zip(images, scores, strict=True)
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(f"{row['image']}  " + "  ".join(f"{name} {value:.4f}" for name, value in row["scores"].items()))


def _scores(names: list[str], pictures: "list[Tensor]", prompt: str, metadata: dict, remote: bool) -> "list[Scores]":
    """Every picture's scores, by the rewards of this process or by a service's."""
    if not remote:
        from sanarl.rewards import build

        mix = build(dict.fromkeys(names, 1.0))
        return [mix(picture[None], [prompt], [metadata]) for picture in pictures]

    from sanarl.config.schema import RemoteReward, RewardFunction
    from sanarl.rewards.remote import RemoteScoring

    functions = tuple(RewardFunction(name=name) for name in names)
    with RemoteScoring(RemoteReward(reward_fns=functions, patience_s=30.0)) as scoring:
        scoring.check()
        found = []
        for picture in pictures:
            scoring.submit([0], picture[None], [prompt], [metadata])
            found.append(scoring.collect(0.0))
        return found


def bench(
    reward: Annotated[str, typer.Option(help="A reward that the service has.")],
    prompt: Annotated[str, typer.Option(help="Prompt of every picture.")] = "a red circle",
    images: Annotated[int, typer.Option(min=1, help="Pictures of a request.")] = 24,
    size: Annotated[int, typer.Option(min=1, help="Their height and width.")] = 1024,
    requests: Annotated[int, typer.Option(min=1, help="Requests in all.")] = 20,
    clients: Annotated[int, typer.Option(min=1, help="Clients that send at a time.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Send noise to the service of REMOTE_REWARD_ENQUEUE_URL and print throughput and latency."""
    from sanarl.rewards import bench as load
    from sanarl.rewards.services import addresses

    found = load.run(addresses(), reward, prompt, images, size, requests, clients)
    if as_json:
        figures = {
            "requests": len(found.latencies),
            "clients": clients,
            "images": images,
            "size": size,
            "seconds": found.seconds,
            "requests_per_s": found.requests_per_s,
            "mb_per_s": found.mb_per_s,
            "p50_s": found.percentile(0.5),
            "p95_s": found.percentile(0.95),
        }
        print(json.dumps(figures, indent=2))
    else:
        print("\n".join(found.lines()))


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (serve, score, bench):
        app.command()(command)
