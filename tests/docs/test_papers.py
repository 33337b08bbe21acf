"""docs/papers.md: every method with a preset that is there and files that are there."""

import re
from fnmatch import fnmatchcase

METHODS = (
    "DiffusionNFT",
    "Flow-GRPO",
    "Coefficients-preserving sampling",
    "GRPO-Guard",
    "Advantage Weighted Matching",
    "Sol-RL",
    "SANA",
    "SD3",
)


def test_every_method_is_credited_with_preset_and_file(pages):
    rows = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in (pages.root / "docs" / "papers.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and "arXiv" in line
    ]
    presets = [path.stem for path in (pages.root / "presets").glob("*.toml")]
    for method in METHODS:
        assert any(re.match(rf"{method}\b", paper) for paper, _, _ in rows), method
    for paper, preset, files in rows:
        for pattern in re.findall(r"[a-z0-9_*-]*\*[a-z0-9_*-]*|(?:tiny|sana|sd3)-[a-z_-]+\b", preset):
            assert any(fnmatchcase(name, pattern) for name in presets), (paper, pattern)
        for file in re.findall(r"`(\w+/[\w/]+\.py)`", files):
            assert (pages.root / "sanarl" / file).is_file(), (paper, file)
