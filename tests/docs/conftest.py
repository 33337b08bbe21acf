"""Reading pages, and running the commands in them."""

import contextlib
import glob
import io
import re
import shlex
import sys
from pathlib import Path

import pytest

from sanarl import cli

ROOT = Path(__file__).resolve().parents[2]
QUICK = (
    "train.max_num_steps=2",
    "train.optm_warmup_steps=0",
    "validation.num_prompts=2",
    "validation.freq=2",
    "guards.enable=false",
)
"""Settings that every training command of a page gets here, so that all of them together take minutes."""


def fences(page, language):
    """The fenced blocks of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(page):
    """The commands of a page's shell blocks, one string each, without remarks."""
    lines = "\n".join(fences(page, "sh")).replace("\\\n", " ").splitlines()
    return [" ".join(line.partition(" # ")[0].split()) for line in lines if line.strip()]


def save_files(page, folder):
    """Write every Python block that begins with its file's name."""
    for source in fences(page, "python"):
        if named := re.match(r"# (\w+\.py)\n", source):
            (folder / named[1]).write_text(source, encoding="utf-8")


def run(command, monkeypatch):
    """Run one ``sanarl`` command in this process, with files for *, quick settings, and ``> FILE``; its exit code."""
    words = [found for word in shlex.split(command) for found in (sorted(glob.glob(word))[:1] or [word])]
    target = words.pop() if ">" in words and words.remove(">") is None else None
    if words[1] == "train":
        words += [part for setting in QUICK for part in ("--set", setting)]
    monkeypatch.setattr(sys, "argv", words)
    said = io.StringIO()
    with contextlib.redirect_stdout(said) if target else contextlib.nullcontext():
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
    if target:
        Path(target).write_text(said.getvalue(), encoding="utf-8")
    return code


@pytest.fixture(scope="session")
def pages():
    """The functions of this module."""
    import types

    return types.SimpleNamespace(root=ROOT, fences=fences, commands=commands, save_files=save_files, run=run)
