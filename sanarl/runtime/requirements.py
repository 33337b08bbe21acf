"""What sanarl asks of the packages around it, and what is installed. Needs the standard library and ``packaging``."""

import importlib
import json
import shlex
import sys
import tomllib
import warnings
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from packaging.requirements import Requirement

State = Literal["ok", "missing", "too old", "not accepted", "broken"]

IMPORTS = {
    "pillow": "PIL.Image",
    "pyyaml": "yaml",
    "scipy": "scipy.ndimage",
    "transformers": "transformers:Gemma2Model",
    "diffusers": "diffusers:SanaPipeline",
    "peft": "peft:LoraConfig",
    "safetensors": "safetensors:safe_open",
}
"""What training takes from a package where importing its name alone would prove too little: ``module:attribute``."""

_LONGEST_REASON = 300


@dataclass(frozen=True)
class Package:
    """One requirement and what was found of it.

    Attributes:
        name: As the requirement spells it. needs: Its version clauses; empty when any will do.
        found: The installed version. state: ``ok`` or what is wrong. reason: Why, when not ok.
        install: The line that mends it, when not ok.
    """

    name: str
    needs: str
    found: str | None
    state: State
    reason: str | None = None
    install: str | None = None


@dataclass(frozen=True)
class Extra:
    """An optional group of packages; ``missing`` holds those that are not ok, ``install`` the line that adds them."""

    name: str
    packages: tuple[str, ...]
    missing: tuple[Package, ...]
    install: str | None

    @property
    def installed(self) -> bool:
        """Whether nothing of it is missing."""
        return not self.missing


@dataclass(frozen=True)
class Declared:
    """What the project declares: requirement lines (PEP 508), names of its extras, clauses on Python's version.

    ``target`` is what pip is to be given: the name, or the source tree of a project that is not installed.
    """

    requires: tuple[str, ...]
    extras: tuple[str, ...]
    python: str
    target: str


def why(error: BaseException) -> str:
    """An exception as one line of limited length."""
    text = " ".join(str(error).split())
    name = type(error).__name__
    return f"{name}: {text}"[:_LONGEST_REASON] if text else name


def install_line(requirement: str, again: bool = False) -> str:
    """The command that installs a requirement for the interpreter that is running, or installs it ``again``."""
    words = [sys.executable or "python", "-m", "pip", "install", *(["--force-reinstall"] if again else [])]
    return f"{shlex.join(words)} '{requirement}'"


def editable(found: metadata.Distribution) -> bool:
    """Whether a distribution is installed as a link to its source tree (PEP 610)."""
    try:
        origin = json.loads(found.read_text("direct_url.json") or "{}")
    except json.JSONDecodeError:
        return False
    return bool(origin.get("dir_info", {}).get("editable"))


def declared(source_tree: Path, distribution: str = "sanarl") -> Declared:
    """What the project declares: as it was installed, or as its source tree says now when it runs from there.

    The metadata of an editable install is that of the day it was made; pyproject.toml may ask for more since.

    Args:
        source_tree: The folder that the running package lies in.
        distribution: The project's name.

    Raises:
        PackageNotFoundError: It is not installed, and there is no pyproject.toml.
    """
    file = source_tree / "pyproject.toml"
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        if not file.is_file():
            raise
        return _from_source(file, str(source_tree))
    if editable(found) and file.is_file():
        return _from_source(file, distribution)
    extras = tuple(found.metadata.get_all("Provides-Extra") or ())
    python = found.metadata.get("Requires-Python") or ""
    return Declared(tuple(found.requires or ()), extras, python, distribution)


def _from_source(file: Path, target: str) -> Declared:
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    optional = project.get("optional-dependencies", {})
    lines = [*project.get("dependencies", ())]
    lines += [_with_extra(line, name) for name, group in optional.items() for line in group]
    return Declared(tuple(lines), tuple(optional), project.get("requires-python", ""), target)


def _with_extra(line: str, extra: str) -> str:
    requirement, _, marker = line.partition(";")
    clause = f'extra == "{extra}"'
    return f"{requirement.strip()}; ({marker.strip()}) and {clause}" if marker.strip() else f"{requirement}; {clause}"


def wanted(lines: Iterable[str], extra: str = "") -> "list[Requirement]":
    """The requirements that hold on this machine: the core ones, or those that ``extra`` adds to them."""
    from packaging.requirements import Requirement

    def holds(requirement: Requirement, name: str) -> bool:
        return requirement.marker is None or requirement.marker.evaluate({"extra": name})

    requirements = [Requirement(line) for line in lines]
    if not extra:
        return [one for one in requirements if holds(one, "")]
    return [one for one in requirements if holds(one, extra) and not holds(one, "")]


def look_up(requirement: "Requirement") -> Package:
    """Compare the installed version of a package with what is asked; nothing is imported."""
    from packaging.version import InvalidVersion

    name, needs = requirement.name, str(requirement.specifier)
    brackets = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    install = install_line(f"{name}{brackets}{needs}")
    try:
        found = metadata.distribution(name)
        version: str | None = found.metadata.get("Version")
    except metadata.PackageNotFoundError:
        return Package(name, needs, None, "missing", "not installed", install)
    if version is None:
        return Package(name, needs, None, "broken", "its metadata names no version", install)
    try:
        state = _state(requirement, version)
    except InvalidVersion as error:
        return Package(name, needs, version, "broken", why(error), install)
    if state != "ok":
        return Package(name, needs, version, state, f"{version} is installed, {needs} is asked", install)
    for nested in (one for extra in requirement.extras for one in wanted(found.requires or (), extra)):
        inner = look_up(nested)
        if inner.state != "ok":
            reason = f"{name}{brackets} asks {inner.name}{inner.needs}: {inner.reason}"
            return Package(name, needs, version, inner.state, reason, install)
    return Package(name, needs, version, "ok")


def _state(requirement: "Requirement", version: str) -> State:
    failing = [one for one in requirement.specifier if not one.contains(version, prereleases=True)]
    if not failing:
        return "ok"
    from packaging.version import Version

    lower = [one for one in failing if one.operator in (">=", ">", "~=")]
    return "too old" if any(Version(version) <= Version(one.version) for one in lower) else "not accepted"


def importable(package: Package) -> Package:
    """The same package, ``broken`` when what training takes from it cannot be imported.

    What the import writes to stdout goes to stderr, so that a document on stdout stays whole.
    """
    if package.state == "missing":
        return package
    module, _, attribute = IMPORTS.get(package.name.lower(), package.name.replace("-", "_")).partition(":")
    try:
        with warnings.catch_warnings(), redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            found = importlib.import_module(module)
            if attribute:
                getattr(found, attribute)
    except (Exception, SystemExit) as error:
        # The version stays the first thing to mend when it is wrong as well.
        state = "broken" if package.state == "ok" else package.state
        before = f"{package.reason}; " if package.reason else ""
        line = package.install or install_line(f"{package.name}{package.needs}", again=True)
        return replace(package, state=state, reason=f"{before}cannot be imported: {why(error)}", install=line)
    return package


def imported(packages: Iterable[Package]) -> tuple[Package, ...]:
    """Every package after :func:`importable`; what breaks beside a broken torch is not to be reinstalled itself."""
    after = tuple(importable(one) for one in packages)
    if all(one.state == "ok" for one in after if one.name == "torch"):
        return after
    return tuple(
        replace(one, reason=f"{one.reason}; mend torch first", install=None)
        if one.state == "broken" and one.name != "torch"
        else one
        for one in after
    )


def extra(project: Declared, name: str) -> Extra:
    """What of an extra is installed, by metadata alone."""
    packages = [look_up(one) for one in wanted(project.requires, name)]
    missing = tuple(one for one in packages if one.state != "ok")
    install = install_line(f"{project.target}[{name}]") if missing else None
    return Extra(name, tuple(one.name for one in packages), missing, install)
