"""Every command of README.md and docs/quickstart.md, run in the order of the page."""

import functools
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

ELSEWHERE = {
    "make demo": "scripts/setup.sh and the first training command of the README, which is run here",
    "make test": "what runs this",
    "python3 -m venv .venv": "benchmarks/quickstart.py",
    ". .venv/bin/activate": "benchmarks/quickstart.py",
    "pip install -c constraints.txt -e .": "benchmarks/quickstart.py",
}
"""Commands that are not run here, and what runs them."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/migrating.md"])
def test_every_command(page, pages, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    pages.save_files("docs/quickstart.md", tmp_path)
    (tmp_path / "my.toml").write_text((pages.root / "presets" / "tiny-image-nft.toml").read_text(), encoding="utf-8")
    found = pages.commands(page)
    assert len(found) >= 3
    for command in found:
        if command in ELSEWHERE:
            continue
        if command.startswith("python "):
            assert subprocess.run([sys.executable, *command.split()[1:]], check=False).returncode == 0
        elif "--serve" in command:
            assert served(command), command
        else:
            code = pages.run(command, monkeypatch)
            assert code == 0, f"{command}\n{capfd.readouterr().err}"
    if page != "docs/migrating.md":
        assert len(list((tmp_path / "outputs" / "tiny-image-nft").glob("*/report.html"))) >= 1


def served(command):
    """Whether a command that serves gives its page, and ends at Ctrl-C."""
    words = [sys.executable, "-m", *command.split(), "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    # As in a terminal: what a script starts in the background is born deaf to Ctrl-C, and so are its children.
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(words, preexec_fn=heard, **pipes) as process:
        address = re.search(r"http://\S+", process.stdout.readline())[0]
        with urllib.request.urlopen(address, timeout=60) as answer:
            page = answer.read().decode()
        process.send_signal(signal.SIGINT)
        return process.wait(60) == 0 and "data-follow" in page


def test_what_is_not_run_here_is_run_elsewhere(pages):
    found = {command for page in ("README.md", "docs/quickstart.md") for command in pages.commands(page)}
    assert set(ELSEWHERE) <= found
    demo = (pages.root / "Makefile").read_text().partition("demo: setup\n")[2].splitlines()[0].strip()
    assert demo.replace("$(BIN)/", "") == "sanarl train --config tiny-image-nft.toml"
    assert demo.replace("$(BIN)/", "") in found
    assert "setup-dev lint" in (pages.root / "Makefile").read_text().partition("test: ")[2].splitlines()[0]


@pytest.mark.slow
def test_the_path_of_a_newcomer(pages, tmp_path):
    # The same commands as in a fresh clone and environment, with the packages of this one and few steps.
    script = pages.root / "benchmarks" / "quickstart.py"
    out = tmp_path / "result.json"
    words = [sys.executable, str(script), "--here", "--steps", "2", "--out", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert '"report_bytes"' in out.read_text()
