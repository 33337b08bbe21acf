"""Python that a person names: a dotted module or a .py file of their own."""

import importlib
import importlib.util
import os
import sys
import traceback
from difflib import get_close_matches
from hashlib import sha1
from pathlib import Path
from types import ModuleType

from sanarl.errors import UserError


class NotFound(UserError):
    """The named module or file does not exist."""


def nearest(name: str, known: list[str], cutoff: float = 0.6) -> str:
    """'; did you mean X?' for the closest known name, or an empty string."""
    close = get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else ""


def where(error: BaseException, inside: str | None = None) -> str:
    """``file:line: Type: message`` of an exception, for an error page.

    Args:
        error: The exception.
        inside: A file of the person's; when the exception came from deeper down, the last line in that file is named
            as well.
    """
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    frames = [f for f in frames if f.filename != __file__]
    if not frames:
        return message
    text = f"{frames[-1].filename}:{frames[-1].lineno}: {message}"
    own = [f for f in frames if inside and f.filename == inside]
    if own and own[-1] is not frames[-1]:
        text += f" (called from {own[-1].filename}:{own[-1].lineno})"
    return text


def is_path(name: str) -> bool:
    """Whether a name means a file: it ends in .py or contains a separator."""
    return name.endswith(".py") or "/" in name or os.sep in name


def import_named(name: str) -> ModuleType:
    """Import a dotted module, or a .py file by its path.

    The working directory (dotted name) or the file's own folder (path) is put at the end of ``sys.path``, so that a
    person's modules find each other and never replace an installed one.

    Raises:
        NotFound: If there is no such module or file.
        UserError: If the name is malformed or importing raised; the page names file, line and message.
    """
    return _import_file(name) if is_path(name) else _import_dotted(name)


def _append_to_path(folder: str) -> None:
    if folder not in sys.path:
        sys.path.append(folder)


def _import_file(name: str) -> ModuleType:
    path = Path(name).expanduser()
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing"
        siblings = [str(p) for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise NotFound(f"{name}: found {found}; accepted: a Python file{nearest(str(path), siblings, 0.85)}")
    if path.suffix != ".py":
        raise UserError(f"{name}: found a {path.suffix or 'nameless'} file; accepted: a Python file ending in .py")
    path = path.resolve()
    module_name = f"{path.stem}_{sha1(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _append_to_path(str(path.parent))
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise UserError(f"{name}: could not be imported\n  {where(error, str(path))}") from error
    return module


def _import_dotted(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise UserError(f"{name!r} is not the name of a module; accepted: a dotted module or a path to a .py file")
    _append_to_path(os.getcwd())
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise NotFound(f"there is no module {name}") from error
        raise UserError(f"{name}: could not be imported\n  {where(error)}") from error
    except (Exception, SystemExit) as error:
        raise UserError(f"{name}: could not be imported\n  {where(error)}") from error
