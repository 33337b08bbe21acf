"""Packages that only some rewards need: imported late, and named with their install line when they are missing."""

import importlib
import shlex
import sys
from types import ModuleType

from sanarl.errors import UserError


def required(module: str, package: str, reward: str, no_deps: bool = False) -> ModuleType:
    """Import a module that a reward needs.

    Args:
        module: Its name.
        package: What pip calls it.
        reward: Who needs it.
        no_deps: Whether it is to be installed without what it asks for.

    Raises:
        UserError: It is not installed or cannot be imported; with the install line for the running interpreter.
    """
    try:
        return importlib.import_module(module)
    except Exception as error:
        words = [sys.executable or "python", "-m", "pip", "install", *(["--no-deps"] if no_deps else []), package]
        found = f"{type(error).__name__}: {' '.join(str(error).split())}"
        lines = (f"{reward} needs the package {package} ({found})", f"  to install it: {shlex.join(words)}")
        raise UserError("\n".join(lines)) from error
