"""From a path or a preset's name to the text and the tree of a TOML file; every way that can fail, in one line each."""

import difflib
import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from sanarl.config import sol_rl
from sanarl.config.faults import ConfigError, Fault, shown

LARGEST_FILE = 1 << 20
DEEPEST = 32
INT64 = (-(2**63), 2**63 - 1)

_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")
_LONG_NUMBER = re.compile(r"[0-9_]{4300,}")
_WORDS = {
    "Invalid value": "no value that TOML knows (texts need quotes)",
    "Cannot overwrite a value": "this key is written twice",
    "Expected newline or end of document after a statement": "something follows the value",
    "Expected '=' after a key in a key/value pair": "expected = after the key",
}


@dataclass(frozen=True)
class Source:
    """A readable TOML file."""

    path: Path
    shown: str
    text: str
    tree: dict[str, Any]
    had_mark: bool
    meant: str | None = None
    """The preset that a name of Sol-RL's stands for."""


def preset_folder() -> Path:
    """Where the shipped presets are: inside the wheel, or beside the package in a checkout."""
    package = Path(str(resources.files("sanarl")))
    inside = package / "presets"
    return inside if inside.is_dir() else package.parent / "presets"


def preset_names() -> list[str]:
    """Names of the shipped presets, without .toml."""
    return sorted(path.stem for path in preset_folder().glob("*.toml"))


def plain_names() -> str:
    """The shipped presets in a line; those of tables by one name for each model."""
    plain = [name for name in preset_names() if name not in sol_rl.names()]
    made = [f"{model}-image-nft-FAMILY-REWARD" for model in sol_rl.MODELS]
    return f"{', '.join([*plain, *made])} and sd3-image-nft-RECIPE (sanarl presets list)"


def find(source: str | Path) -> tuple[Path, str]:
    """The file that ``source`` names and how to call it: a path, or a preset's name with or without .toml."""
    name = printable(str(source))
    path = Path(source)
    if not str(source).strip():
        raise _fail(name, "no file is named; expected a TOML file or the name of a preset")
    try:
        if path.is_file():
            return path, name
        bare = str(source).removesuffix(".toml")
        if bare in preset_names():
            found = preset_folder() / f"{bare}.toml"
            return found, printable(_short(found))
        if path.is_dir():
            raise _fail(name, "is a directory; expected a TOML file or the name of a preset")
        if path.exists():
            raise _fail(name, "is not a regular file")
    except (OSError, ValueError) as error:
        raise _fail(name, f"cannot be looked up ({_reason(error)})") from error
    near = difflib.get_close_matches(path.name.removesuffix(".toml").lower(), preset_names(), n=1, cutoff=0.5)
    advice = f"did you mean the preset {near[0]}?" if near else f"presets: {plain_names()}"
    raise _fail(name, f"no such file, and no preset of that name; {advice}")


def printable(text: str) -> str:
    """A name or an argument on one line, in quotes when it would not be read as written otherwise."""
    return text if text.isprintable() and text.strip() == text != "" and len(text) <= 200 else shown(text)


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def read(source: str | Path) -> Source:
    """Find, decode and parse. Raises ConfigError with one fault."""
    meant = sol_rl.resolve(str(source))
    meant = None if meant is not None and Path(source).is_file() else meant
    path, name = find(meant or source)
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise _fail(name, f"cannot be read ({_reason(error)})") from error
    if len(raw) > LARGEST_FILE:
        raise _fail(name, f"larger than {LARGEST_FILE} bytes; this is no preset")
    try:
        decoded = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _fail(name, f"not UTF-8: byte 0x{raw[error.start]:02x}; save the file as UTF-8", line) from error
    text = decoded.removeprefix("\ufeff")
    if not text.strip():
        raise _fail(name, "is empty; `sanarl presets list` shows presets to start from")
    return Source(path, name, text, parse(text, name), had_mark=text != decoded, meant=meant)


def parse(text: str, name: str) -> dict[str, Any]:
    """tomllib with one clear line for what it refuses."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax(text, name, str(error)) from error
    except RecursionError as error:
        raise _fail(name, f"lists or tables nested deeper than {DEEPEST}") from error
    except ValueError as error:  # an integer with more digits than Python converts, a date that does not exist
        digits = _LONG_NUMBER.search(text)
        line = None if digits is None else text.count("\n", 0, digits.start()) + 1
        raise _fail(name, f"not valid TOML: {_reason(error)}", line) from error
    if too_deep(tree):
        raise _fail(name, f"lists or tables nested deeper than {DEEPEST}")
    return tree


def too_deep(tree: object) -> bool:
    """Whether containers are nested deeper than any configuration needs."""
    level = [tree]
    for _ in range(DEEPEST):
        level = [child for node in level for child in _children(node)]
        if not level:
            return False
    return True


def _children(node: object) -> list[Any]:
    if isinstance(node, dict):
        return list(node.values())
    return list(node) if isinstance(node, list) else []


def _syntax(text: str, name: str, message: str) -> ConfigError:
    place = _PLACE.search(message)
    words = message[: place.start()] if place else message
    words = _WORDS.get(words, words[:1].lower() + words[1:])
    if place and place[1]:
        return ConfigError([Fault("", f"not valid TOML: {words}", f"{name}:{place[1]}:{place[2]}", int(place[1]))])
    last = max(1, len(text.rstrip("\n").split("\n")))
    return _fail(name, f"not valid TOML: {words} (the file ends too early)", last)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error).split("\n")[0].split(";")[0]


def _fail(name: str, text: str, line: int | None = None) -> ConfigError:
    return ConfigError([Fault("", text, name if line is None else f"{name}:{line}", line)])
