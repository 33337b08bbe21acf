"""sanarl presets: what is shipped, and how a file differs from it."""

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sanarl.cli.completion import configurations, names

if TYPE_CHECKING:
    from sanarl.config import Config

presets = typer.Typer(help="The presets that are shipped.", no_args_is_help=True)


@presets.command("list")
def list_presets() -> None:
    """Name every preset with its task and its model, where to start, and what it needs that is not everywhere."""
    from sanarl.cli.voice import columns
    from sanarl.config import load, preset_names

    configs = {name: load(name).config for name in preset_names()}
    rows = [
        (name, config.task, config.policy.model_name_or_path, remark)
        for (name, config), remark in zip(configs.items(), _remarks(configs), strict=True)
    ]
    columns(rows, ("bold", "cyan", "", "yellow"))


def _remarks(configs: "dict[str, Config]") -> list[str]:
    """Where to start, and what a preset needs, with what of its engine is not here."""
    from sanarl.config.sol_rl import START
    from sanarl.runtime import engines

    here = engines.machine() if any(engines.needs(config) for config in configs.values()) else None
    remarks = []
    for name, config in configs.items():
        asked = engines.needs(config)
        needs = [need for need in (asked, _rewards(config)) if need]
        parts = ["start here"] if name in START else []
        parts += [f"needs {', '.join(needs)}"] if needs else []
        if here is not None and asked:
            reasons = dict.fromkeys(lack.reason for lack in engines.lacking(config, here).values())
            parts += [f"here: {'; '.join(reasons)}"] if reasons else []
        remarks.append("; ".join(parts))
    return remarks


def _rewards(config: "Config") -> str:
    """What has to be there to score."""
    from sanarl.rewards.weights import needed

    if not config.is_rl:
        return ""
    if config.grpo.use_remote_reward:
        return "a reward service"
    fetched = [name for name in config.grpo.reward_function if needed(name)]
    return f"the weights of {', '.join(fetched)}" if fetched else ""


@presets.command()
def show(name: Annotated[str, typer.Argument(autocompletion=names, help="The name of a preset.")]) -> None:
    """Print a preset, to be redirected into a file of your own."""
    print(_text(name), end="")


@presets.command()
def diff(
    name: Annotated[str, typer.Argument(autocompletion=names, help="The name of a preset.")],
    path: Annotated[str, typer.Argument(autocompletion=configurations, help="A TOML file, or another preset.")],
) -> None:
    """Show the values in which a file differs from a preset; comments, order and spelling aside."""
    from sanarl.config import load

    before, after = load(name), load(path)
    old, new = (dict(loaded.config.leaves()) for loaded in (before, after))
    changed = [key for key in (*old, *(key for key in new if key not in old)) if old.get(key) != new.get(key)]
    if not changed:
        print(f"{after.path}: the same values as {before.path.stem}")
    for key in changed:
        print(f"{key}: {_value(old.get(key))} -> {_value(new.get(key))}")


def _value(value: object) -> str:
    from sanarl.config.faults import shown

    return "unset" if value is None else shown(value)


def _text(name: str) -> str:
    from sanarl.config import preset_folder, preset_names
    from sanarl.config.sol_rl import resolve
    from sanarl.errors import UserError

    bare = resolve(name) or name.removesuffix(".toml")
    if bare not in preset_names():
        near = difflib.get_close_matches(bare, preset_names(), n=1, cutoff=0.5)
        advice = f"did you mean {near[0]}?" if near else f"presets: {', '.join(preset_names())}"
        raise UserError(f"{name}: no preset of that name; {advice}")
    return Path(preset_folder() / f"{bare}.toml").read_text(encoding="utf-8")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(presets, name="presets")
