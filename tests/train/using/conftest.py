"""Commands through the command line's own entry point."""

import sys
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def sanarl(capsys, monkeypatch):
    """A function that runs a command in this process."""
    from sanarl import cli

    def go(*arguments):
        monkeypatch.setattr(sys, "argv", ["sanarl", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Done(code, *capsys.readouterr())

    return go


@pytest.fixture(scope="session")
def video_folder(tmp_path_factory):
    """The smallest random pipeline for video, saved as diffusers does."""
    from sanarl.models.tiny import random_video_pipeline

    folder = tmp_path_factory.mktemp("pipeline") / "video"
    random_video_pipeline(0).save_pretrained(folder)
    return folder
