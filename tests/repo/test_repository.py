"""What holds of the repository as a whole."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import sanarl

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(m.name for m in pkgutil.walk_packages(sanarl.__path__, "sanarl.") if not m.name.endswith("__main__"))
SOURCES = sorted((ROOT / "sanarl").rglob("*.py"))


def test_floors():
    # A module imports only from floors below its own; the contracts stand in pyproject.toml. In a process of its own,
    # because it sets up logging for all of it.
    command = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(cache_dir=None))"
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", MODULES)
def test_every_module_imports(name):
    importlib.import_module(name)


def test_there_are_modules_to_import():
    assert {"sanarl.training.rl", "sanarl.models.sana", "sanarl.maths.nft", "sanarl.cli"} <= set(MODULES)


def test_datasets_holds_no_python():
    # A top-level package of that name would shadow Hugging Face's.
    assert list((ROOT / "datasets").rglob("*.py")) == []


def test_families_and_the_configuration_alone_know_whether_it_is_video():
    # Everything else goes by frames, latents and the modality that these two tell.
    reading = {str(p.relative_to(ROOT / "sanarl")) for p in SOURCES if "is_video" in p.read_text("utf-8")}
    assert {name for name in reading if not name.startswith("config/")} == {"models/families.py"}


def test_modules_are_short():
    long = {str(p.relative_to(ROOT)): n for p in SOURCES if (n := len(p.read_text("utf-8").splitlines())) > 350}
    assert long == {}
