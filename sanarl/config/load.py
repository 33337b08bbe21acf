"""TOML file and --set arguments -> a checked, frozen Config, or one ConfigError with everything that is wrong."""

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sanarl.config import check, overrides, remarks
from sanarl.config.faults import ConfigError, Fault, Finding, KeyPath, Note, dotted, shown
from sanarl.config.keys import Kind, keys
from sanarl.config.positions import lines_of
from sanarl.config.schema.root import Config
from sanarl.config.sort import real_name, rename_aliases, sort_keys
from sanarl.config.source import Source, printable, read

TASK: KeyPath = ("train", "train_policy")
_LANGUAGE_MODEL = re.compile(
    r"(?:^|[-_.])(?:qwen|llama|mistral|mixtral|deepseek|gpt|phi|gemma|internvl|openvla|pi0|pi05|cosmos-reason)", re.I
)
_DIFFUSION_MODEL = re.compile(r"image|video|sana|diffusion|flux|sd3|wan", re.I)


@dataclass(frozen=True)
class Loaded:
    """A checked configuration and where it came from."""

    config: Config
    notes: tuple[Note, ...]
    path: Path
    text: str
    overrides: tuple[str, ...] = ()


def load(source: str | Path, overrides: Sequence[str] = ()) -> Loaded:
    """Read a file, or a shipped preset by name with or without .toml, and apply ``key.path=value`` arguments.

    Raises:
        ConfigError: with every fault, sorted by line.
    """
    return load_source(read(source), overrides)


def load_source(source: Source, overrides: Sequence[str] = ()) -> Loaded:
    """As ``load``, of what was read already.

    Raises:
        ConfigError: with every fault, sorted by line.
    """
    return _Reading(source, tuple(overrides)).result()


class _Reading:
    """One file on its way; collects what is wrong instead of stopping at the first fault."""

    def __init__(self, source: Source, arguments: tuple[str, ...]) -> None:
        self.source = source
        self.arguments = arguments
        self.tree: dict[str, Any] = copy.deepcopy(source.tree)
        self.places: dict[KeyPath, int] = lines_of(source.text)
        self.set_by: dict[KeyPath, str] = {}
        self.faults: list[Fault] = []
        self.notes: list[Note] = []

    def result(self) -> Loaded:
        if self.source.had_mark:
            self.notes.append(Note("info", "the byte-order mark at the start of the file is skipped"))
        if self.source.meant is not None:
            self.notes.append(Note("info", f"that project's name is read as the preset {self.source.meant}"))
        self.name_keys()
        self.refuse_other_kinds()
        kind = self.kind()
        sorted_keys = sort_keys(self.tree, kind)
        for finding in sorted_keys.findings:
            self.add(finding)
        config = self.validated(sorted_keys.tree, kind, sorted_keys.given)
        if self.faults or config is None:
            raise ConfigError(sorted(self.faults, key=self.order))
        self.notes += remarks.notes(config, sorted_keys.given, sorted_keys.no_effect, self.source.path.stem)
        self.notes += remarks.native_note(self.at(("policy", "lora", "target_modules")))
        return Loaded(config, tuple(self.notes), self.source.path, self.source.text, self.arguments)

    def name_keys(self) -> None:
        """Aliases of the file first, so that --set wins over either spelling; then the arguments."""
        remarks, findings = rename_aliases(self.tree, self.places)
        for finding in findings:
            self.add(finding)
        for argument in self.arguments:
            override = overrides.read(argument)
            if override.problem:
                key = dotted(override.path)
                self.faults.append(Fault(key, override.problem, f"--set {printable(argument)}", None, argument))
                continue
            renamed = real_name(override.path)
            if renamed != override.path:
                remarks.append(f"{dotted(override.path)} is read as {renamed[-1]}")
            path, problem = overrides.apply(self.tree, override, real_name)
            if problem:
                place = f"--set {printable(argument)}"
                self.faults.append(Fault(dotted(path), problem, place, None, argument))
                continue
            for known in [known for known in self.places if known[: len(path)] == path]:
                del self.places[known]
            self.set_by[path] = argument
        self.notes += [Note("warning", remark) for remark in remarks]

    def refuse_other_kinds(self) -> None:
        """One line for presets of language models, vision-language-action models and the like."""
        is_diffusers, name = self.at(("policy", "is_diffusers")), self.at(("policy", "model_name_or_path"))
        last = name.rstrip("/").rpartition("/")[2] if isinstance(name, str) else ""
        if _LANGUAGE_MODEL.search(last) and not _DIFFUSION_MODEL.search(last):
            what = f"found {shown(name)}, a language model; sanarl trains diffusion models only"
            raise self.only(("policy", "model_name_or_path"), what)
        if "vla" in self.tree:
            raise self.only(
                ("vla",), "a preset for a vision-language-action model; sanarl trains diffusion models only"
            )
        if is_diffusers is not True:
            found = "missing" if is_diffusers is None else f"found {shown(is_diffusers)}"
            what = f"{found}; accepted true: only presets for diffusion models can be used, none for other models"
            raise self.only(("policy", "is_diffusers"), what)

    def kind(self) -> Kind:
        """The type of train_policy; what is wrong with it is said here, and the rest is read as sft."""
        table = self.at(TASK)
        if not isinstance(table, dict):
            found = "missing" if table is None else f"found {shown(table)}"
            self.add(Finding(TASK, f'{found}; accepted a table with type = "sft" or type = "grpo"'))
            self.drop_task()
            return "sft"
        name, trainer = table.get("type"), table.get("trainer_type")
        if name not in ("sft", "grpo"):
            found = "missing" if name is None else f"found {shown(name)}"
            self.add(Finding((*TASK, "type"), f'{found}; accepted "sft" or "grpo"'))
            self.drop_task()
            return "sft"
        if name == "grpo" and trainer not in ("diffusion_nft", "awm", "flow_grpo"):
            self.add(Finding((*TASK, "trainer_type"), _algorithm(trainer)))
            table["trainer_type"] = "diffusion_nft"
        return "grpo" if name == "grpo" else "sft"

    def drop_task(self) -> None:
        """Go on without the table, so that faults elsewhere are still found."""
        train = self.tree.get("train")
        if train is None or isinstance(train, dict):
            self.tree["train"] = {**(train or {}), "train_policy": {"type": "sft"}}

    def validated(self, tree: dict[str, Any], kind: Kind, given: set[str]) -> Config | None:
        """Values against the schema, then the rules between keys, also when some values were bad."""
        known, bad = keys(kind), set[str]()
        config = None
        for attempt in range(4):  # mending may bring up one more, which is no fault of the file
            try:
                config = Config.model_validate(tree)
                break
            except ValidationError as error:
                for path, text in _explained(error, tree, kind):
                    if attempt == 0:
                        self.add(Finding(path, text))
                    bad.add(_leaf(path, known))
                    tree = _mended(tree, path, _leaf(path, known))
        if config is None:
            return None
        noted = bad | {fault.key for fault in self.faults}
        for finding in check.findings(config, given):
            about = [dotted(path) for path in (finding.path, *finding.involves)]
            if not any(_touches(key, other) for key in about for other in noted):
                self.add(finding)
        return config

    def at(self, path: KeyPath) -> Any:
        node: Any = self.tree
        for part in path:
            node = node.get(part) if isinstance(node, dict) else None
        return node

    def add(self, finding: Finding) -> None:
        self.faults.append(self.placed(finding))

    def only(self, path: KeyPath, text: str) -> ConfigError:
        return ConfigError([self.placed(Finding(path, text))])

    def placed(self, finding: Finding) -> Fault:
        """The fault at its key, else at a key that it is about, else at the table that the key is missing from.

        An argument counts before the file: what it changed is what the user just did.
        """
        about = (finding.path, *finding.involves)
        outwards = [finding.path[:length] for length in range(len(finding.path) - 1, 0, -1)]
        inwards = [path for path in self.set_by if path[: len(finding.path)] == finding.path]
        key = dotted(finding.path)
        for path in (*(path for path in about if path in self.set_by), *about, *outwards, *inwards):
            if path in self.set_by:
                argument = self.set_by[path]
                return Fault(key, finding.text, f"--set {printable(argument)}", None, argument)
            if path in self.places:
                return Fault(key, finding.text, f"{self.source.shown}:{self.places[path]}", self.places[path])
        return Fault(key, finding.text, self.source.shown)

    def order(self, fault: Fault) -> tuple[int, int, str]:
        if fault.argument is not None:
            return (2, self.arguments.index(fault.argument), fault.key)
        return (1, 0, fault.key) if fault.line is None else (0, fault.line, fault.key)


def _algorithm(trainer: Any) -> str:
    found = "missing" if trainer is None else f"found {shown(trainer)}"
    return f'{found}; with type = "grpo" accepted "diffusion_nft", "awm" or "flow_grpo"'


def _explained(error: ValidationError, tree: dict[str, Any], kind: Kind) -> list[tuple[KeyPath, str]]:
    """One line for each key that pydantic refuses, in our words."""
    lines: dict[KeyPath, str] = {}
    known = keys(kind)
    for item in error.errors(include_url=False):
        path = _in_tree(item["loc"], tree)
        if item["type"] == "missing":
            path = (*path, item["loc"][-1])
        leaf = _leaf(path, known)
        at_leaf = path[: leaf.count(".") + 1]
        accepted = known[leaf].accepts if leaf in known else "another value"
        if item["type"] == "missing" and _in_tree(at_leaf, tree) != at_leaf:
            lines.setdefault(path, f"missing; accepted {accepted}")
            continue
        value = _value(tree, at_leaf)  # a bad entry of a list: show the list
        found = shown(_value(tree, path) if isinstance(value, dict) else value)
        said = str(item["ctx"]["error"]) if item["type"] == "value_error" else f"accepted {accepted}"
        if item["type"] == "finite_number":
            said = "accepted a finite number"
        lines.setdefault(path, f"found {found}; {said}")
    return list(lines.items())


def _in_tree(loc: tuple[int | str, ...], tree: Any) -> KeyPath:
    """pydantic's location without the names of union members."""
    path: KeyPath = ()
    node = tree
    for part in loc:
        is_entry = isinstance(node, tuple) and isinstance(part, int) and part < len(node)
        if is_entry or (isinstance(node, dict) and part in node):
            path, node = (*path, part), node[part]
    return path


def _value(tree: Any, path: KeyPath) -> Any:
    node = tree
    for part in path:
        node = node[part]
    return node


def _leaf(path: KeyPath, known: dict[str, Any]) -> str:
    """The longest beginning of the path that is a key of the schema."""
    parts = ["*" if isinstance(part, int) else part for part in path]
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in known:
            return ".".join(parts[:length])
    return ""


def _mended(tree: dict[str, Any], path: KeyPath, leaf: str) -> dict[str, Any]:
    """The tree without the bad key, or, where a key is missing, without the table that lacks it."""
    if leaf == "policy.model_name_or_path":
        return {**tree, "policy": {**tree["policy"], "model_name_or_path": "unknown"}}
    at_leaf = path[: leaf.count(".") + 1]
    is_there = _in_tree(at_leaf, tree) == at_leaf
    return _without(tree, leaf if is_there else leaf.rpartition(".")[0])


def _without(tree: dict[str, Any], leaf: str) -> dict[str, Any]:
    """A copy without the key; a list that holds it goes whole."""
    first, _, rest = leaf.partition(".")
    if first not in tree:
        return tree
    child = tree[first]
    if rest and isinstance(child, dict):
        return {**tree, first: _without(child, rest)}
    return {name: value for name, value in tree.items() if name != first}


def _touches(key: str, other: str) -> bool:
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")
