"""Every key that is known, with its fate: for `sanarl validate --keys` and docs/config.md."""

from collections.abc import Iterator
from dataclasses import dataclass

from sanarl.config.cosmos import ALIASES, FATES, Fate
from sanarl.config.faults import shown
from sanarl.config.keys import KINDS, Key, every_key, keys


@dataclass(frozen=True)
class Row:
    """A key, what becomes of it, and a sentence."""

    key: str
    fate: str
    detail: str


def table() -> list[Row]:
    """All rows: first what is honoured, in the schema's order, then aliases, then Cosmos-RL's other keys."""
    return [*_honoured(), *_aliases(), *_others()]


def _honoured() -> Iterator[Row]:
    for key in every_key().values():
        if not key.is_table:
            yield Row(key.path, "honoured", f"{key.accepts}; {_default(key)}{_only(key.path)}")


def _default(key: Key) -> str:
    return key.default if key.is_required else f"default {key.default}"


def _only(path: str) -> str:
    kinds = [kind for kind in KINDS if path in keys(kind)]
    return "" if len(kinds) == len(KINDS) else f"; type = {shown(kinds[0])} only"


def _aliases() -> Iterator[Row]:
    for alias, (key, remark) in ALIASES.items():
        yield Row(alias, "alias", f"read as {key}; {remark}")


def _others() -> Iterator[Row]:
    merged: dict[str, Fate] = {**FATES["sft"], **FATES["grpo"]}
    honoured = every_key()
    for key, fate in merged.items():
        kinds = [kind for kind in KINDS if key in FATES[kind]]
        only = "" if len(kinds) == len(KINDS) else f"; type = {shown(kinds[0])} only"
        if key not in honoured or only:
            yield Row(key, fate.kind, f"{_values(fate)}{only}")


def _values(fate: Fate) -> str:
    if fate.harmless is None:
        return "any value"
    accepted = " or ".join(shown(value) for value in fate.harmless)
    return f"accepted {accepted}: {fate.instead}" if accepted else f"not supported: {fate.instead}"
