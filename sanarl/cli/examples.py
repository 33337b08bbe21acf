"""Examples of every command, shown by its --help; a test parses each."""

from collections.abc import Iterator
from typing import Any

import typer

EXAMPLES: dict[str, tuple[str, ...]] = {
    "train": (
        "sanarl train --config tiny-image-nft",
        "sanarl train --config my.toml my_prompts.py --set train.optm_lr=1e-4 --nproc 2",
        "sanarl train --config my.toml --resume auto",
        "sanarl train --config my.toml --dry-run",
    ),
    "sample": (
        'sanarl sample --run outputs/my/RUN --prompt "two red circles" --compare',
        "sanarl sample --run outputs/my/RUN --prompts validation --step best",
        "sanarl sample --model tiny-image --lora my_adapter --prompts prompts.txt --size 64x64",
    ),
    "eval": (
        "sanarl eval outputs/my/RUN",
        "sanarl eval outputs/my/RUN --prompts drawbench --rewards pickscore,ocr --num-samples 4",
        "sanarl eval tiny-image --lora my_adapter --prompts shapes --rewards shapes --json",
    ),
    "report": ("sanarl report outputs/my/RUN", "sanarl report outputs/my/RUN1 outputs/my/RUN2 --out page.html"),
    "export": (
        "sanarl export outputs/my/RUN",
        "sanarl export outputs/my/RUN --to peft --step last --out my_adapter",
    ),
    "validate": (
        "sanarl validate my.toml",
        "sanarl validate presets --json",
        "sanarl validate my.toml --set train.optm_lr=1e-4",
        "sanarl validate --keys",
    ),
    "doctor": ("sanarl doctor", "sanarl doctor --json"),
    "presets list": ("sanarl presets list",),
    "presets show": ("sanarl presets show tiny-image-nft > my.toml",),
    "presets diff": ("sanarl presets diff tiny-image-nft my.toml",),
    "dataset check": ("sanarl dataset check my_pictures --config sana-image-sft-lora",),
    "dataset prepare": ("sanarl dataset prepare my_pictures --out prepared --size 1024x1024",),
    "dataset fetch": ("sanarl dataset fetch", "sanarl dataset fetch pickscore"),
    "reward list": ("sanarl reward list",),
    "reward fetch": ("sanarl reward fetch pickscore", "sanarl reward fetch hpsv2 --to reward_ckpts"),
    "reward serve": ("sanarl reward serve --config rewards.toml --port 8080",),
    "reward score": ('sanarl reward score picture.png --prompt "two red circles" --reward shapes',),
    "reward bench": ("sanarl reward bench --reward shapes --requests 10",),
}


def commands(app: typer.Typer, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Name and description of every command, those of groups as ``group command``."""
    for command in app.registered_commands:
        assert command.callback is not None, "a command without a function"
        yield f"{prefix}{command.name or command.callback.__name__.replace('_', '-')}", command
    for group in app.registered_groups:
        assert group.typer_instance is not None, "a group without commands"
        yield from commands(group.typer_instance, f"{prefix}{group.name} ")


def show(app: typer.Typer) -> None:
    """Put the examples under the help of their commands."""
    for name, command in commands(app):
        if name in EXAMPLES:
            command.epilog = "\n\n".join(["Examples:", *EXAMPLES[name]])
