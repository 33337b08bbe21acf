"""Pages that are written by the code are as the code says, and the site builds without a warning."""

import re
import subprocess
import sys

import pytest

from sanarl.config import load, migrating
from sanarl.config.hints import HINTS
from sanarl.config.keys import every_key
from sanarl.data.module import load as load_module
from sanarl.report import docs


def test_tables_of_migrating_are_as_the_schema_says(capsys):
    assert migrating.main(["--check"]) == 0, capsys.readouterr().out
    known = every_key()
    assert all(key in known for value in migrating.SOL_RL for key in HINTS[value.hint].keys)


def test_the_module_of_migrating_reads_prompts(pages, tmp_path):
    pages.save_files("docs/migrating.md", tmp_path)
    for split, text in (("train", "a\n\nb \n"), ("test", "c\n")):
        (tmp_path / f"{split}.txt").write_text(text, encoding="utf-8")
    keys = [f'{table}.dataset.local_dir="{tmp_path}"' for table in ("train.train_policy", "validation")]
    config = load("tiny-image-nft", keys).config
    module = load_module(str(tmp_path / "prompts_of_mine.py"))
    train, held_out = module.train(config), module.validation(config)
    assert [train[i] for i in range(len(train))] == [{"prompt": prompt, "metadata": {}} for prompt in ("a", "b")]
    assert held_out[0]["prompt"] == "c"


def test_metrics_are_as_the_table_says():
    assert docs.main(["--check"]) == 0


def test_names_of_metrics_are_stable(pages):
    # A name that goes or changes breaks what people have built on it: change it with a note in CHANGELOG.md.
    pinned = (pages.root / "tests" / "docs" / "metrics.txt").read_text().split()
    rows = re.findall(r"^\| `([^`]+)` \|", docs.page().partition("## Where they go")[0], re.MULTILINE)
    assert sorted(rows) == sorted(pinned)


def test_links_lead_somewhere(pages):
    broken = []
    for page in [*(pages.root / "docs").glob("*.md"), pages.root / "README.md", pages.root / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http://", "https://", "mailto:")) and not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert broken == []


@pytest.mark.slow
def test_the_site_builds_without_warnings(pages, tmp_path):
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(words, cwd=pages.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages_built = {path.stem for path in (tmp_path / "site").glob("*.html")}
    assert {path.stem for path in (pages.root / "docs").glob("*.md")} <= pages_built
    # Nothing is fetched from elsewhere when a page is opened.
    text = (tmp_path / "site" / "quickstart.html").read_text(encoding="utf-8")
    assert re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="https?://[^"]*"', text) == []
