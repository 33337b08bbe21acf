"""One HTML file: the document, a style sheet and a script, all inside, and a policy that lets nothing else in."""

import base64
import hashlib
import html
import json
import os
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from sanarl.errors import UserError
from sanarl.report.document import document

SCRIPTS = ("text.js", "charts.js", "films.js", "samples.js", "tables.js", "main.js")

TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; \
script-src '{hash}'; connect-src {connect}; base-uri 'none'; form-action 'none'">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
<header id="top"><h1>{heading}</h1><div id="runs"></div></header>
<nav id="nav" aria-label="Sections"></nav>
<main id="main" tabindex="-1"></main>
<footer id="foot"></footer>
<noscript>What this page shows is drawn by the script inside it, which this browser does not run.</noscript>
<script type="application/json" id="data"{follow}>{data}</script>
<script>{script}</script>
</body>
</html>
"""


@cache
def _asset(name: str) -> str:
    return (files("sanarl.report") / "assets" / name).read_text(encoding="utf-8")


def as_json(found: dict[str, Any]) -> str:
    """The document in a form that can stand inside a script element: no ``<`` is left to end it."""
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def page(found: dict[str, Any], follow_s: float | None = None) -> str:
    """The whole page.

    Args:
        found: from ``document``.
        follow_s: seconds between looks for news, for a page that is served; None for a file.
    """
    script = "(() => {\n'use strict';\n" + "\n".join(_asset(name) for name in SCRIPTS) + "})();"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    title = ", ".join(run["name"] for run in found["runs"])
    return TEMPLATE.format(
        hash=f"sha256-{digest}",
        connect="'none'" if follow_s is None else "'self'",
        title=html.escape(f"{title} - sanarl report"),
        heading="sanarl report",
        style=_asset("page.css"),
        follow="" if follow_s is None else f' data-follow="{follow_s:g}"',
        data=as_json(found),
        script=script,
    )


def write(folders: list[Path], path: Path) -> int:
    """Write a page about runs and give its size in bytes.

    Raises:
        UserError: when it cannot be written.
    """
    if path.exists() and not path.is_file():
        found = "a folder" if path.is_dir() else "no plain file"
        raise UserError(f"sanarl report --out {path}: found {found}; accepted: the name of a file, such as report.html")
    text = page(document(folders)).encode("utf-8", errors="replace")
    beside = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(text)
        os.replace(beside, path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise UserError(f"sanarl report: {path} cannot be written ({reason}); name another with --out") from error
    return len(text)
