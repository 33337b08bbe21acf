"""Fates, hints, defaults and docs: the tables agree with the schema and with Cosmos-RL's configuration.

data/cosmos_keys.json: every key path of Cosmos-RL's configuration (89f2e5b) with its default as Python source.
"""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from sanarl.config import ConfigError, docs, load
from sanarl.config.cosmos import ALIASES, FATES, fate_of
from sanarl.config.departures import DEPARTURES
from sanarl.config.fates import table
from sanarl.config.faults import shown
from sanarl.config.hints import HINTS, hint_for
from sanarl.config.keys import KINDS, Key, Kind, every_key, keys

KNOWN: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "cosmos_keys.json").read_text())
COSMOS: dict[Kind, dict[str, Any]] = {kind: KNOWN["shared"] | KNOWN[kind] for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_cosmos_has_one_fate(kind: Kind) -> None:
    for path in COSMOS[kind]:
        key = path.replace(".*", ".anything") if path.endswith(".*") else path
        if key.startswith(("vla.", "policy.diffusers.lora.")):
            continue  # refused as a whole
        assert (key in keys(kind)) != (fate_of(key, kind) is not None), key
    for alias, (key, _) in ALIASES.items():
        assert key in keys(kind)
        assert alias not in keys(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_no_fate_for_a_key_that_nobody_knows(kind: Kind) -> None:
    ours = {"vla", "distillation.enable", "policy.diffusers.lora"}
    tables = {path.removesuffix("*") for path in COSMOS[kind]}
    for path in FATES[kind]:
        known = path in COSMOS[kind] or any(table.startswith(path.removesuffix("*")) for table in tables)
        assert known or path in ours, path


@pytest.mark.parametrize("kind", KINDS)
def test_cosmos_defaults_without_effect_are_harmless_or_listed_departures(kind: Kind) -> None:
    for path, default in COSMOS[kind].items():
        fate = fate_of(path, kind)
        if fate is None or path.endswith("*"):
            continue
        try:
            value = ast.literal_eval(default)
        except (ValueError, SyntaxError):
            value = [] if default == "list" else ["SIGUSR1"]
        assert value is None or fate.allows(value) or path in DEPARTURES, path


@pytest.mark.parametrize("kind", KINDS)
def test_other_defaults_than_cosmos_are_listed_with_a_reason(kind: Kind) -> None:
    for path, key in keys(kind).items():
        if path in COSMOS[kind] and not key.is_table and path != "custom":
            assert _same_default(COSMOS[kind][path], key) or path in DEPARTURES, path


def _same_default(theirs: str | None, key: Key) -> bool:
    if theirs is None:
        return key.is_required
    try:
        value = ast.literal_eval(theirs)
    except (ValueError, SyntaxError):
        return False
    if value in (None, []) and key.default in ("unset", "[]", "an empty table"):
        return True
    return key.default == shown(value) or (isinstance(value, (int, float)) and key.default == shown(float(value)))


def test_departures_are_departures() -> None:
    for path, departure in DEPARTURES.items():
        assert path in every_key() or fate_of(path, "grpo") is not None
        if path in every_key() and "reward_fns" not in path and path != "train.train_policy.trainer_type":
            assert departure.ours == every_key()[path].default


def test_hints_name_keys_that_exist() -> None:
    for name, hint in HINTS.items():
        assert hint.keys or hint.remark
        for key in hint.keys:
            assert key in every_key(), f"{name} -> {key}"
    assert str(hint_for("train.train_policy.beta")).startswith("policy.diffusers.nft_beta or ")
    assert str(hint_for("train.beta")).startswith("train.train_policy.kl_beta")
    assert str(hint_for("policy.lora.bias")) == "biases are not trained"
    assert "DoRA" in str(hint_for("policy.lora.use_dora"))
    assert hint_for("train.seed") is None


def test_unsupported_values_are_refused_and_harmless_ones_accepted() -> None:
    for kind, preset in (("sft", "tiny-image-sft-lora"), ("grpo", "tiny-image-nft")):
        for path, fate in FATES[kind].items():
            if path.endswith("*") or path in ("vla", "policy.diffusers.lora"):
                continue
            values = fate.harmless if fate.harmless is not None else ("anything",)
            for value in values:
                assert path in load(preset, [f"{path}={_toml(value)}"]).notes[0].text
            if fate.harmless is not None:
                with pytest.raises(ConfigError, match=re.escape(f"{path}: found 77; ")):
                    load(preset, [f"{path}=77"])


def _toml(value: object) -> str:
    return "{}" if value == {} else json.dumps(value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_refuses_nan_inf_and_truth_values(kind: Kind) -> None:
    preset = "tiny-image-sft-lora" if kind == "sft" else "tiny-image-nft"
    numbers = [key for key in keys(kind).values() if "number" in key.accepts and "*" not in key.path]
    assert len(numbers) > 30
    bad = [f"{key.path}={value}" for key in numbers for value in ("nan", "inf", "-inf", "true")]
    for argument in bad:
        with pytest.raises(ConfigError) as caught:
            load(preset, [argument])
        assert argument.partition("=")[0] in {fault.key.removesuffix(".0") for fault in caught.value.faults}


def test_table_has_every_key_once() -> None:
    rows = [(row.key, row.fate == "honoured") for row in table()]  # both when only one type honours it
    assert len(rows) == len(set(rows))
    assert {row.fate for row in table()} == {"honoured", "alias", "no effect", "unsupported value"}


def test_docs_are_as_the_schema_says() -> None:
    assert docs.PAGE.read_text(encoding="utf-8") == docs.page(), "run python -m sanarl.config.docs"


def test_every_honoured_key_is_explained() -> None:
    assert [key.path for key in every_key().values() if not key.meaning] == []
