"""Every key that is known, with its fate: for `sanarl validate --keys` and docs/config.md."""

from collections.abc import Iterator
from dataclasses import dataclass

from sanarl.config.cosmos import ALIASES, FATES, Fate
from sanarl.config.faults import shown
from sanarl.config.keys import KINDS, Key, Kind, every_key, keys


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
    for path, key in every_key().items():
        if not key.is_table:
            details = {kind: _detail(keys(kind)[path]) for kind in KINDS if path in keys(kind)}
            texts = [text if len(set(details.values())) == 1 else f"{kind}: {text}" for kind, text in details.items()]
            yield Row(path, "honoured", f"{'; '.join(dict.fromkeys(texts))}{_only(list(details))}")


def _detail(key: Key) -> str:
    return f"{key.accepts}; {key.default if key.is_required else f'default {key.default}'}"


def _only(kinds: list[Kind]) -> str:
    return "" if len(kinds) == len(KINDS) else f"; type = {shown(kinds[0])} only"


def _aliases() -> Iterator[Row]:
    for alias, (key, remark) in ALIASES.items():
        yield Row(alias, "alias", f"read as {key}; {remark}")


def _others() -> Iterator[Row]:
    """A key that one type honours and the other does not has a row in both parts of the table."""
    for key, fate in {**FATES["sft"], **FATES["grpo"]}.items():
        yield Row(key, fate.kind, f"{_values(fate)}{_only([kind for kind in KINDS if key in FATES[kind]])}")


def _values(fate: Fate) -> str:
    if fate.harmless is None:
        return "any value"
    accepted = " or ".join(shown(value) for value in fate.harmless)
    return f"accepted {accepted}: {fate.instead}" if accepted else f"not supported: {fate.instead}"
