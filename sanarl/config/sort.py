"""Sorts the keys of a file: honoured ones go to the schema, the others get their fate, a hint, or both."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sanarl.config.cosmos import ALIASES, fate_of, is_table
from sanarl.config.faults import Finding, KeyPath, dotted, shown
from sanarl.config.hints import hint_for
from sanarl.config.keys import KINDS, Kind, keys
from sanarl.config.source import INT64


@dataclass
class Sorted:
    """What is left for the schema, and what was found on the way."""

    tree: dict[str, Any] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    no_effect: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def rename_aliases(tree: dict[str, Any], lines: dict[KeyPath, int]) -> tuple[list[str], list[Finding]]:
    """Move aliased keys of a file to their real name, in place; returns remarks and faults."""
    remarks: list[str] = []
    faults: list[Finding] = []
    for alias, (key, why) in ALIASES.items():
        *parents, old = alias.split(".")
        new = key.split(".")[-1]
        table: Any = tree
        for part in parents:
            table = table.get(part) if isinstance(table, dict) else None
        if not isinstance(table, dict) or old not in table:
            continue
        value = table.pop(old)
        if new in table:
            faults.append(Finding((*parents, old), f"is read as {new}, which is also set; leave one of the two"))
            continue
        table[new] = value
        if (*parents, old) in lines:
            lines[(*parents, new)] = lines[(*parents, old)]
        remarks.append(f"{alias} is read as {new} ({why})")
    return remarks, faults


def real_name(path: KeyPath) -> KeyPath:
    """The key that a path is read as."""
    key = ".".join(map(str, path))
    return tuple(ALIASES[key][0].split(".")) if key in ALIASES else path


def sort_keys(tree: dict[str, Any], kind: Kind) -> Sorted:
    """Walk the tree once. Lists become tuples, for a frozen configuration."""
    result = Sorted()
    result.tree = _table(tree, (), "", kind, result)
    return result


def _table(node: dict[str, Any], path: KeyPath, pattern: str, kind: Kind, result: Sorted) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    known = keys(kind)
    for name, value in node.items():
        here, key = (*path, name), f"{pattern}{name}"
        if "." in name or key not in known:
            _other(name, value, here, key, kind, result)
        elif known[key].is_table:
            result.given.add(key)
            kept[name] = _honoured(value, here, key, kind, result)
        elif (wide := _wide_integer(value)) is not None:
            result.findings.append(Finding(here, f"found {shown(wide)}; TOML's integers have 64 bits"))
        else:
            result.given.add(key)
            kept[name] = _frozen(value)
    return kept


def _honoured(value: Any, path: KeyPath, key: str, kind: Kind, result: Sorted) -> Any:
    if isinstance(value, dict):
        return _table(value, path, f"{key}.", kind, result)
    if isinstance(value, list) and any(name.startswith(f"{key}.*.") for name in keys(kind)):
        entries = enumerate(value)
        return tuple(
            _table(entry, (*path, index), f"{key}.*.", kind, result) if isinstance(entry, dict) else entry
            for index, entry in entries
        )
    return value


def _other(name: str, value: Any, path: KeyPath, key: str, kind: Kind, result: Sorted) -> None:
    """A key that the schema does not have."""
    fate = None if "." in name else fate_of(key, kind)
    if fate is None and "." not in name and is_table(key, kind):
        if isinstance(value, dict):
            for child, inner in value.items():
                _other(child, inner, (*path, child), f"{key}.{child}", kind, result)
        else:
            result.findings.append(Finding(path, f"found {shown(value)}; accepted a table"))
    elif fate is None:
        result.findings.append(Finding(path, f"unknown key{_advice(name, path, key, kind)}"))
    elif fate.allows(value):
        result.no_effect.append(dotted(path))
    else:
        accepted = " or ".join(shown(harmless) for harmless in fate.harmless or ())
        wanted = f"accepted {accepted}: " if accepted else "not supported: "
        result.findings.append(Finding(path, f"found {shown(value)}; {wanted}{fate.instead}"))


def _advice(name: str, path: KeyPath, key: str, kind: Kind) -> str:
    hint = hint_for(key)
    if hint is not None:
        return f"; here it is {hint}" if hint.keys else f"; {hint}"
    for other in KINDS:
        if key in keys(other):
            return f' with train.train_policy.type = "{kind}"; it belongs to type = "{other}"'
        if fate_of(key, other) is not None:
            return (
                f' with train.train_policy.type = "{kind}"; Cosmos-RL has it for type = "{other}", without effect here'
            )
    table = ".".join("*" if isinstance(part, int) else part for part in path[:-1])
    siblings = [known.rpartition(".")[2] for known in keys(kind) if known.rpartition(".")[0] == table]
    near = difflib.get_close_matches(name, siblings, n=1, cutoff=0.7)
    if near:
        return f"; did you mean {near[0]}?"
    elsewhere = [known for known in keys(kind) if known.rpartition(".")[2] == name]
    if not elsewhere:
        leaves = {known.rpartition(".")[2]: known for known in keys(kind)}
        close = difflib.get_close_matches(name, leaves, n=1, cutoff=0.8)
        elsewhere = [leaves[leaf] for leaf in close]
    return f"; did you mean {' or '.join(elsewhere[:3])}?" if elsewhere else ""


def _wide_integer(value: Any) -> int | None:
    """An integer that does not fit 64 bits, anywhere in the value."""
    if isinstance(value, int):
        return None if INT64[0] <= value <= INT64[1] else value
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    found: Callable[[Any], int | None] = _wide_integer
    return next((wide for child in children if (wide := found(child)) is not None), None)


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    return value
