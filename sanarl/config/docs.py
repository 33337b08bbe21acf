"""Writes docs/config.md from the schema: ``python -m sanarl.config.docs [--check]``."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from sanarl.config.departures import DEPARTURES
from sanarl.config.fates import table
from sanarl.config.hints import HINTS
from sanarl.config.keys import Key, Kind, keys

PAGE = Path(__file__).parents[2] / "docs" / "config.md"

_INTRO = """\
# Configuration

<!-- Written by `python -m sanarl.config.docs`; edit the schema in sanarl/config/schema instead. -->

A run is described by one TOML file on Cosmos-RL's key paths. `sanarl validate FILE` checks it without starting
anything and names every fault at once, with its line; `--set key.path=value` overrides a key of the file for one run
(the value is TOML; a text may go without quotes; an entry of a list is reached by its number, as in
`--set train.train_policy.remote_reward.reward_fns.0.weight=2`). `sanarl presets list` shows where to start.

Each key has one of five fates, and `sanarl validate --keys` prints them all:

| fate | what happens |
|---|---|
| honoured | it works; these are the tables below |
| alias | read as another key, with a warning |
| no effect | Cosmos-RL has it and it changes nothing here; one info line names those that a file sets |
| unsupported value | accepted with the values that ask for nothing that is missing, else an error |
| unknown | an error with the nearest name |

Sizes are contracts about numbers, not about hardware. SFT takes `train_batch_per_replica * dp_shard_size *
dp_replicate_size * n_init_replicas` samples an optimiser step; reinforcement learning takes `train_batch_per_replica *
n_init_replicas` samples a rollout, and `batch_size_per_optimize * dp_shard_size * dp_replicate_size * n_init_replicas`
an optimiser step. Fewer GPUs give the same numbers and longer steps.

Three dtypes: `policy.diffusers.dtype` is that of text encoder and VAE, `train.param_dtype` that of the transformer's
weights and arithmetic, `train.master_dtype` that of the values that the optimiser moves.
"""


def page() -> str:
    """The whole document."""
    parts = [_INTRO, *_sections(), _departures(), _others(), _names()]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _sections() -> Iterator[str]:
    shared = {path: key for path, key in keys("sft").items() if path in keys("grpo")}
    yield "## Keys\n"
    for name in ("policy", "rollout", "train", "validation", "data", "guards", "logging", "custom"):
        if name == "train":
            task = "train.train_policy."
            yield from _tables({path: key for path, key in shared.items() if not path.startswith(task)}, name)
            kinds: tuple[Kind, ...] = ("sft", "grpo")
            for kind in kinds:
                only = {path: key for path, key in keys(kind).items() if path.startswith(task)}
                yield from _tables(only, "train.train_policy", f' with type = "{kind}"')
        else:
            yield from _tables(shared, name)


def _tables(known: dict[str, Key], root: str, suffix: str = "") -> Iterator[str]:
    tables = dict.fromkeys(path.rpartition(".")[0] for path in known if f"{path}.".startswith(f"{root}."))
    for name in tables:
        rows = [key for path, key in known.items() if path.rpartition(".")[0] == name and not key.is_table]
        if name == "" and root in known and not known[root].is_table:
            rows = [known[root]]
        if not rows or (name == "" and known[root].is_table):
            continue
        title = name.replace(".*", "[]") or root
        lines = [[f"`{key.path.rpartition('.')[2]}`", key.accepts, _code(key.default), key.meaning] for key in rows]
        yield f"### [{title}]{suffix}\n\n{markdown(['key', 'accepts', 'default', 'meaning'], lines)}"


def _departures() -> str:
    rows = [[f"`{key}`", _code(d.theirs), _code(d.ours), d.reason] for key, d in DEPARTURES.items()]
    return f"## Other defaults than Cosmos-RL's\n\n{markdown(['key', 'Cosmos-RL', 'here', 'why'], rows)}"


def _others() -> str:
    rows = [[f"`{row.key}`", row.fate, row.detail] for row in table() if row.fate != "honoured"]
    return f"## Cosmos-RL's other keys\n\n{markdown(['key', 'fate', 'values'], rows)}"


def _names() -> str:
    rows = [[f"`{name}`", ", ".join(f"`{key}`" for key in hint.keys), hint.remark] for name, hint in HINTS.items()]
    text = "Sol-RL's, DiffusionNFT's and other common names; an unknown key of this list is answered with ours."
    return f"## Names elsewhere\n\n{text}\n\n{markdown(['name', 'here', 'remark'], rows)}"


def _code(text: str) -> str:
    plain = ("required", "unset", "", "an empty table")
    return text if text in plain or text.startswith("required") else f"`{text}`"


def markdown(head: list[str], rows: Iterable[list[str]]) -> str:
    """A table; bars within cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def main(arguments: list[str]) -> int:
    """Write the page, or with --check say whether the page on disk is this one."""
    if "--check" in arguments:
        fresh = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page()
        print(f"{PAGE.name}: {'as the schema says' if fresh else 'differs from the schema: run this without --check'}")
        return 0 if fresh else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
