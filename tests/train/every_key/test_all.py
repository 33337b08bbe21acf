"""No key of the schema without a case that would fail if the key were ignored, and no case without its key."""

import importlib.util
from pathlib import Path

import pytest

from sanarl.config import load
from sanarl.config.keys import every_key, keys

MODULES = sorted(set(Path(__file__).parent.glob("test_*.py")) - {Path(__file__)})


@pytest.fixture(scope="module")
def cases():
    """Key -> names of its cases, from the marks in the modules beside this one."""
    found = {}
    for file in MODULES:
        spec = importlib.util.spec_from_file_location(f"every_key_{file.stem}", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, case in vars(module).items():
            marks = list(getattr(case, "pytestmark", ())) if name.startswith("test_") else []
            rows = [row for mark in marks if mark.name == "parametrize" for row in mark.args[1]]
            marks += [mark for row in rows for mark in getattr(row, "marks", ())]
            for key in {key for mark in marks if mark.name == "honours" for key in mark.args}:
                found.setdefault(key, []).append(f"{file.name}::{name}")
    return found


def test_every_key_has_a_case(cases):
    assert [path for path, key in every_key().items() if not key.is_table and path not in cases] == []


def test_every_case_has_a_key(cases):
    leaves = {path for path, key in every_key().items() if not key.is_table}
    assert {key: names for key, names in cases.items() if key not in leaves} == {}


@pytest.mark.parametrize(("preset", "kind"), [("tiny-image-sft-lora", "sft"), ("tiny-image-nft", "grpo")])
def test_the_keys_are_those_of_a_configuration(preset, kind):
    # Reference: the configuration written out; a table of free names, or one that is unset, is a single key there.
    leaves = {path for path, key in keys(kind).items() if not key.is_table}
    written = [key for key, _ in load(preset).config.leaves()]
    assert len(written) > 90
    assert [k for k in written if k not in leaves | set(keys(kind)) and k.rpartition(".")[0] not in leaves] == []
