"""Help with examples, completion, colours, and that none of it imports what is heavy."""

import os
import shlex
import subprocess
import sys

import pytest
import typer

from sanarl.cli import app, completion, examples
from sanarl.config import preset_names

NAMES = [name for name, _ in examples.commands(app)]
HEAVY = ("torch", "diffusers", "transformers", "peft", "numpy", "av", "PIL", "httpx", "wandb")


def test_every_command_has_examples_and_every_example_its_command():
    assert sorted(NAMES) == sorted(examples.EXAMPLES)
    shown = dict(examples.commands(app))
    for name, lines in examples.EXAMPLES.items():
        assert all(line in shown[name].epilog for line in lines)


@pytest.mark.parametrize("line", [line for lines in examples.EXAMPLES.values() for line in lines])
def test_an_example_is_understood(line):
    # Parsed as the shell and the command would, but not run.
    words = shlex.split(line.partition(" > ")[0])
    assert words.pop(0) == "sanarl"
    command, context = typer.main.get_command(app), None
    while hasattr(command, "commands"):
        name = words.pop(0)
        command, context = (
            command.commands[name],
            command.make_context(name, [], parent=context, resilient_parsing=True),
        )
    command.make_context(command.name, words, parent=context)


def python(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


RUN = """
import sys
sys.argv = {words!r}
from sanarl import cli
try:
    cli.main()
except SystemExit as stop:
    assert not stop.code
"""


def test_help_imports_nothing_heavy():
    # One process for all: a module that any of them imported would still be there.
    code = "import sys\nfrom sanarl import cli\n"
    for words in ([], *(name.split() for name in NAMES)):
        code += f"sys.argv = {['sanarl', *words, '--help']!r}\ntry:\n    cli.main()\nexcept SystemExit:\n    pass\n"
    code += f"found = sorted({{m.partition('.')[0] for m in sys.modules}} & set({HEAVY!r}))\nassert not found, found"
    said = python(code, COLUMNS="200")
    for lines in examples.EXAMPLES.values():
        for line in lines:
            assert line in said


@pytest.mark.parametrize("words", [["--help"], ["presets", "list"], ["validate", "tiny-image-sft"]])
def test_colours_and_no_color(words):
    code = RUN.format(words=["sanarl", *words])
    many = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    plain, coloured = python(code, NO_COLOR="1", **many), python(code, NO_COLOR="", **many)
    colours = [f"\x1b[{style}{colour}" for style in ("", "1;", "2;") for colour in range(30, 38)]
    assert any(colour in coloured for colour in colours)
    assert not any(colour in plain for colour in colours)


def test_what_the_shell_offers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny-mine.toml").write_text("")
    (tmp_path / "tiny-notes.txt").write_text("")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "data.py").write_text("")
    assert (
        completion.configurations("tiny-image-n") == [n for n in preset_names() if n.startswith("tiny-image-n")] != []
    )
    assert completion.configurations("tiny-m") == ["tiny-mine.toml"]
    assert completion.dataset_modules("sanarl.datasets.sh") == ["sanarl.datasets.shapes"]
    assert completion.dataset_modules("de") == ["deep/"]
    assert completion.dataset_modules("deep/") == ["deep/data.py"]
    assert completion.configurations("nowhere/x") == []
    assert completion.rewards("ocr,picks") == ["ocr,pickscore"]


def test_the_shells_own_completion_reaches_it():
    # As bash asks: the words and the place of the one that is being typed.
    environment = {
        "_SANARL_COMPLETE": "complete_bash",
        "COMP_WORDS": "sanarl train --config tiny-image-sft-l",
        "COMP_CWORD": "3",
    }
    code = "import sys; sys.argv = ['sanarl']\nfrom sanarl import cli\ncli.main()"
    assert python(code, **environment).split() == ["tiny-image-sft-lora"]


def test_verbose_shows_where_a_page_came_from():
    code = "import sys; sys.argv = ['sanarl', 'train', '--config', 'nowhere', {flag!r}]\nfrom sanarl import cli\n"
    code += "try:\n    cli.main()\nexcept SystemExit as stop:\n    assert stop.code == 2\n"
    for flag, shown in (("--verbose", True), ("--quiet", False)):
        done = subprocess.run(
            [sys.executable, "-c", code.format(flag=flag)], capture_output=True, text=True, check=True
        )
        assert "no such file" in done.stderr
        assert ("Traceback" in done.stderr) == shown
