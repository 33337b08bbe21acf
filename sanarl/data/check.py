"""What a folder of media holds, in numbers, and everything that is wrong with it."""

import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sanarl.data.buckets import nearest
from sanarl.data.folder import View, look_at_video
from sanarl.data.inspection import inspect
from sanarl.data.prepared import manifest
from sanarl.data.scan import PICTURES, VIDEOS, scan

NAMED = 10  # examples of a kind


@dataclass
class Findings:
    """Of one kind of media in a folder."""

    what: str
    """"pictures" or "videos"."""
    good: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    """Why -> how many cannot be used."""
    faults: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Faults that are no error under any policy: animations, and short videos where they are to be skipped."""
    notes: list[str] = field(default_factory=list)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(height, width) -> how many."""
    buckets: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(height, width) that media are cropped to -> how many."""
    seconds: list[float] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    words: list[int] = field(default_factory=list)
    """Of the captions."""
    captions: Counter[int] = field(default_factory=Counter)
    """Hash of a caption -> how often."""
    copies: dict[str, list[str]] = field(default_factory=dict)
    """Name of a file -> names of the first files of the same content."""
    num_copies: int = 0

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "what": self.what,
            "usable": self.good,
            "unusable": dict(self.kinds.most_common()),
            "faults": self.faults,
            "skipped": self.skipped,
            "notes": self.notes,
            "sizes": [[h, w, n] for (h, w), n in self.sizes.most_common(NAMED)],
            "buckets": [[h, w, n] for (h, w), n in sorted(self.buckets.items())],
            "height": _spread([h for (h, _), n in self.sizes.items() for _ in range(n)]),
            "width": _spread([w for (_, w), n in self.sizes.items() for _ in range(n)]),
            "seconds": _spread(self.seconds),
            "frames": _spread(self.frames),
            "caption_words": _spread(self.words),
            "repeated_captions": sum(n - 1 for n in self.captions.values()),
            "copies": self.num_copies,
            "copies_first": self.copies,
        }


def _spread(values: list[Any]) -> dict[str, Any] | None:
    if not values:
        return None
    return {
        "min": min(values),
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        "max": max(values),
    }


def check(
    path: Path,
    view: View | None = None,
    keys: tuple[str, ...] = ("prompt",),
    seen: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Findings]:
    """Decode every file, or remember that it was decoded, and count.

    Args:
        path: The folder.
        view: How a run would read it; None: every picture and every video as a whole.
        keys: Names that the caption may have.
        seen: Told how many of all files are done.

    Returns:
        One entry a kind of media that is there; at least one.

    Raises:
        UserError: If the folder is missing or cannot be entered.
    """
    if view is not None:
        return [_check(path, view.suffixes, view.look, view.label, keys, view, seen)]
    pictures = View(None)
    found = [
        _check(path, PICTURES, pictures.look, pictures.label, keys, None, seen),
        _check(path, VIDEOS, look_at_video, "whole videos", keys, None, seen),
    ]
    return [one for one in found if one.good or one.kinds] or found[:1]


def _check(
    path: Path, suffixes: tuple[str, ...], look: Any, label: str, keys: tuple[str, ...], view: View | None, seen: Any
) -> Findings:
    scanned = scan(path, suffixes, keys)
    findings = Findings(
        "videos" if suffixes == VIDEOS else "pictures", faults=list(scanned.faults), notes=scanned.notes
    )
    findings.kinds["incomplete"] += len(scanned.faults)
    verdicts = inspect(path, scanned.rows, look, label, lambda done: seen(done, len(scanned.rows)))
    firsts: dict[bytes, int] = {}
    prepared = any(True for _ in manifest(path))
    digests: dict[str, bytes] = {}
    for row, ((name, caption), verdict) in enumerate(zip(scanned.rows, verdicts, strict=True)):
        if verdict["kind"] != "good":
            findings.kinds[verdict["kind"]] += 1
            skipped = verdict["kind"] == "animation" or (
                verdict["kind"] == "short" and view is not None and view.skips_short
            )
            (findings.skipped if skipped else findings.faults).append(verdict["fault"])
            continue
        _count(findings, name, caption, verdict, view)
        digest = bytes.fromhex(verdict["sha256"])
        if prepared:
            digests[name] = digest
        if (first_row := firsts.setdefault(digest, row)) != row:
            findings.num_copies += 1
            first = scanned.rows[first_row][0]
            if first in findings.copies or len(findings.copies) < NAMED:
                findings.copies.setdefault(first, []).append(name)
    findings.faults += _against_manifest(path, suffixes, digests)
    findings.kinds += Counter()  # drops zeros
    return findings


def _count(findings: Findings, name: str, caption: str, verdict: dict[str, Any], view: View | None) -> None:
    findings.good += 1
    size = (verdict["height"], verdict["width"])
    findings.sizes[size] += 1
    if view is not None and view.sizes is not None:
        findings.buckets[nearest(*size, sizes=view.sizes)] += 1
    findings.words.append(len(caption.split()))
    findings.captions[hash(caption)] += 1
    if findings.what == "videos":
        findings.frames.append(verdict["frames"])
        findings.seconds.append(verdict["seconds"])
        if verdict["claimed"] > verdict["frames"]:
            claim = f"its container claims {verdict['claimed']} frames and holds {verdict['frames']}"
            findings.notes.append(f"{name}: {claim}; those it holds are read")


def _against_manifest(path: Path, suffixes: tuple[str, ...], digests: dict[str, bytes]) -> list[str]:
    """Files that are not, or no longer, what `dataset prepare` wrote."""
    faults = []
    for entry in manifest(path):
        if not entry["file"].endswith(suffixes):
            continue
        if not (path / entry["file"]).is_file():
            faults.append(f"{path / entry['file']}: is in the manifest and missing")
        elif entry["file"] in digests and digests[entry["file"]].hex() != entry["sha256"]:
            faults.append(f"{path / entry['file']}: differs from what the manifest says was written")
    return faults
