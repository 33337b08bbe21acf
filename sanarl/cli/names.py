"""What a configuration names: rewards against the table, adapter layers against the model; imports nothing heavy."""

import difflib
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sanarl.config import Config, Fault, Loaded

Finding = tuple[tuple[str, ...], str]
"""Key path and what is wrong there."""


def faults(loaded: "Loaded") -> "list[Fault]":
    """Names that training would refuse, each at its line or argument."""
    found = [*_rewards(loaded.config), *_layers(loaded.config)]
    return [_placed(loaded, path, text) for path, text in found]


def _rewards(config: "Config") -> Iterator[Finding]:
    from sanarl.rewards import unknown

    task = ("train", "train_policy", "reward_function")
    tables = {("validation", "reward_function"): config.validation.reward_function}
    if config.is_rl:
        tables[("guards", "reward_function")] = config.guards.reward_function
        if not config.grpo.use_remote_reward:
            tables[task] = config.grpo.reward_function
    for path, names in tables.items():
        for name in names:
            fault = unknown(name)
            if fault is not None:
                yield (*path, name), fault


def _layers(config: "Config") -> Iterator[Finding]:
    from sanarl.models.layers import is_target, widths

    lora = config.policy.lora
    if lora is None or config.family == "unknown":
        return
    known = widths(config.policy.model_name_or_path, config.modality, config.family)
    targets = lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)
    single = [targets] if isinstance(targets, str) else targets
    missing = [t for t in single if not any(is_target(n, t if isinstance(targets, str) else [t]) for n in known)]
    if missing:
        ends = sorted({re.sub(r"^.*?\d+\.", "", name) for name in known})
        near = sorted({close for t in missing for close in difflib.get_close_matches(t, ends, n=1)})
        advice = f"did you mean {', '.join(near)}?" if near else f"its layers are {', '.join(ends)}"
        if isinstance(targets, str):
            advice = (
                f"a text is a regular expression for whole names; layers that end so are a list: {json.dumps(single)}"
            )
        yield ("policy", "lora", "target_modules"), f"no layer is called {', '.join(missing)}; {advice}"
        return
    widest = max(size for name, size in known.items() if is_target(name, targets))
    for path, rank in (
        (("policy", "lora", "r"), lora.r),
        *((("policy", "lora", "r_pattern", name), rank) for name, rank in lora.r_pattern.items()),
    ):
        if rank > widest:
            yield path, f"found {rank}; accepted at most {widest}, the width of the widest of these layers"


def _placed(loaded: "Loaded", path: tuple[str, ...], text: str) -> "Fault":
    from sanarl.config import Fault
    from sanarl.config.faults import dotted
    from sanarl.config.positions import lines_of

    key = dotted(path)
    for argument in reversed(loaded.overrides):
        if key.startswith(argument.partition("=")[0].strip()):
            return Fault(key, text, f"--set {argument}", None, argument)
    lines = lines_of(loaded.text)
    line = next((lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines), None)
    return Fault(key, text, str(loaded.path) if line is None else f"{loaded.path}:{line}", line)
