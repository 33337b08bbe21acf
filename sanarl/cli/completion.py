"""What the shell offers after Tab: presets and TOML files, dataset modules, rewards."""

from collections.abc import Iterable
from pathlib import Path


def names(incomplete: str) -> list[str]:
    """Presets that begin so."""
    from sanarl.config import preset_names

    return _beginning(preset_names(), incomplete)


def configurations(incomplete: str) -> list[str]:
    """Presets, TOML files and folders that begin so."""
    return [*names(incomplete), *_paths(incomplete, ".toml")]


def dataset_modules(incomplete: str) -> list[str]:
    """Dataset modules that ship, .py files and folders that begin so."""
    package = Path(__file__).parents[1] / "datasets"
    shipped = sorted(f"sanarl.datasets.{file.stem}" for file in package.glob("[a-z]*.py"))
    return [*_beginning(shipped, incomplete), *_paths(incomplete, ".py")]


def rewards(incomplete: str) -> list[str]:
    """Rewards whose name begins as the last of a list with commas does."""
    from sanarl.rewards import TABLE

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning(sorted(TABLE), last)]


def _beginning(known: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in known if name.startswith(incomplete)]


def _paths(incomplete: str, suffix: str) -> list[str]:
    folder, _, start = incomplete.rpartition("/")
    place = Path(f"{folder}/" if folder else ".")
    try:
        found = sorted(place.iterdir())
    except OSError:
        return []
    prefix = f"{folder}/" if folder else ""
    fitting = [path for path in found if path.name.startswith(start) and not path.name.startswith(".")]
    return [f"{prefix}{p.name}{'/' if p.is_dir() else ''}" for p in fitting if p.is_dir() or p.suffix == suffix]
