"""Pages that are written by the code are as the code says, and the site builds without a warning."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

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


def benchmark(monkeypatch, name):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module(name)


def test_tables_of_performance_are_as_the_results_say(monkeypatch, capsys):
    tables = benchmark(monkeypatch, "tables")
    assert tables.main(["--check"]) == 0, capsys.readouterr().err


def test_a_result_fills_its_tables(monkeypatch, tmp_path):
    # Reference: by hand. 100 ms a sample with 3 timesteps of 10 ms are 160 ms with nine: 22 500 samples an hour.
    tables = benchmark(monkeypatch, "tables")
    run = {
        "name": "nft",
        "ms_a_sample": 100.0,
        "ms_trained_a_sample_and_timestep": 10.0,
        "timesteps": 3,
        "samples_a_step": 10,
        "trained_tflops_a_rank": 400.0,
        "memory_peak_gib": [80.0, 81.0],
        "medians": {"time/rollout": 0.7},
    }
    result = {"card": "X", "versions": {"torch": "2"}, "date": "2026-11-30", "weights": "random", "matmul_tflops": 800}
    result |= {"runs": [run], "shares_of_the_baseline": {"nft": {"inner_step": 0.4, "whole_step": 0.41}}}
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    (tmp_path / "train_x_2026-11-30.json").write_text(json.dumps(result), encoding="utf-8")
    (tmp_path / "train_cpu_2026-12-30.json").write_text("{}", encoding="utf-8")
    page = "<!-- train -->\nold\n<!-- end of train -->\n<!-- cost -->\n<!-- end of cost -->\n"
    page += "<!-- scale -->\n\n<!-- end of scale -->\n"
    found = tables.filled(page)
    assert "| `nft` | 10.0 | 0.4 | 160 | 0.41 | 400 (50%) | 81.0 |" in found
    assert "| `nft` | 70 | 90 | 160 | 22,500 |" in found
    assert "*Not measured on a card yet: `benchmarks/scale.py`.*" in found
    assert "old" not in found
    scaled = run | {"medians": {"time/step": 1.0, "time/train": 0.3}}
    assert tables.hourly(scaled) == "22,500"  # 10 samples in 1 + 0.3 * 2 s
    assert tables.filled(found) == found
