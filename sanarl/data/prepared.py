"""What `dataset prepare` leaves beside the media: manifest.jsonl and report.json."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sanarl.data.inspection import sha256
from sanarl.data.scan import MANIFEST, REPORT, Scan
from sanarl.data.spool import Rows
from sanarl.errors import UserError

NAMED = 1000  # skipped files that the report names; the others are counted


def report_of(found: Scan, entries: Rows, counts: Counter[str], settings: dict[str, Any]) -> dict[str, Any]:
    """No word of when or where, so that the same source gives the same report."""
    base = f"{found.path}/"
    skipped = [{"why": fault.replace(base, ""), "kind": "incomplete"} for fault in found.faults]
    skipped += [{"why": entry["why"].replace(base, ""), "kind": entry["kind"]} for entry in entries if "why" in entry]
    return {
        "kept": counts.total(),
        "parts": {part: counts[part] for part in sorted(counts) if part},
        "skipped": dict(Counter(one["kind"] for one in skipped).most_common()),
        "why": skipped[:NAMED],
        "left_out": dict(sorted(found.foreign.items())),
        "left_out_first": found.named,
        "source": state_of(found),
        "settings": settings,
    }


def state_of(found: Scan) -> str:
    """Hash of names, sizes and captions."""
    state = hashlib.sha256()
    for source, prompt in found.rows:
        path = found.path / source
        size = path.stat().st_size if path.is_file() else -1
        state.update(f"{source}\0{size}\0{prompt}\1".encode(errors="surrogateescape"))
    return state.hexdigest()


def earlier(out: Path, found: Scan, settings: dict[str, Any]) -> dict[str, Any]:
    """The report of an earlier call that made just this.

    Raises:
        UserError: If ``out`` holds anything else.
    """
    report = read_json(out / REPORT)
    if not isinstance(report, dict) or "settings" not in report:
        count = sum(1 for _ in out.iterdir())
        raise UserError(f"--out {out}: found a folder with {count} entries; accepted: an empty one, or none yet")
    if report["settings"] != settings:
        theirs, ours = report["settings"], settings
        keys = [key for key in ours if theirs.get(key) != ours[key]]
        differs = "; ".join(f"{key} {json.dumps(theirs.get(key))} there, {json.dumps(ours[key])} asked" for key in keys)
        raise UserError(f"--out {out}: was made with other settings ({differs}); name another folder or delete it")
    if report.get("source") != state_of(found) or not all(_same(out, found)):
        raise UserError(
            f"--out {out}: was made from other files than {found.path} now holds; name another or delete it"
        )
    return report


def _same(out: Path, found: Scan) -> Iterator[bool]:
    """For every source file that may have been touched since, whether it holds what it held."""
    since = (out / REPORT).stat().st_mtime_ns
    hashes: dict[str, str] = {}
    for source, _ in found.rows:
        state = (found.path / source).stat()
        if max(state.st_mtime_ns, state.st_ctime_ns) <= since:
            continue
        hashes = hashes or {e["source"]: e["source_sha256"] for e in manifest(out)}
        yield hashes.get(source) == sha256(found.path / source)


def manifest(out: Path) -> Iterator[dict[str, Any]]:
    """Entries of a prepared folder's manifests; nothing when it has none, or one that was written by something else.

    Raises:
        UserError: If one begins as ours and is damaged later.
    """
    for part, prefix in ((out, ""), (out / "train", "train/"), (out / "test", "test/")):
        if not (part / MANIFEST).is_file():
            continue
        with (part / MANIFEST).open(encoding="utf-8", errors="surrogateescape") as lines:
            for number, line in enumerate(lines, 1):
                entry = _entry(line)
                if entry is None and number == 1:
                    break
                if entry is None:
                    raise UserError(
                        f"{part / MANIFEST}:{number}: found no entry of a manifest; prepare the folder anew"
                    )
                yield {**entry, "file": prefix + entry["file"]}


def _entry(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    ours = isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("file", "sha256", "source"))
    return value if ours else None


def to_json(value: Any) -> bytes:
    """A line of UTF-8; half surrogates, from file names that are no Unicode, are escaped."""
    return (json.dumps(value, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def read_json(path: Path) -> Any:
    """A file's value; None when it is absent or no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_whole(path: Path, data: bytes) -> None:
    """A file that is whole or absent."""
    partial_name = path.with_name(f".{path.name}.tmp")
    partial_name.write_bytes(data)
    os.replace(partial_name, path)
