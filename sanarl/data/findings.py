"""What was seen of a folder's media, in numbers, and what is wrong with them."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sanarl.data.buckets import Size, nearest
from sanarl.data.prepared import manifest
from sanarl.data.scan import VIDEOS, Scan

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
    of_manifest: list[str] = field(default_factory=list)
    """The faults that only the manifest of a prepared folder shows; they are among ``faults``."""
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

    def statistics(self) -> Iterator[str]:
        """Numbers, in words: a line of each kind."""
        page = self.document()
        for key in ("height", "width", "frames", "seconds", "caption_words"):
            if (spread := page[key]) is not None:
                name = key.replace("_", " ")
                yield f"{name:14} {spread['min']:g} to {spread['max']:g}, median {spread['median']:g}"
        if page["buckets"]:
            yield "cropped to     " + ", ".join(f"{h}x{w}: {n}" for h, w, n in page["buckets"])
        elif page["sizes"]:
            yield "sizes          " + ", ".join(f"{h}x{w}: {n}" for h, w, n in page["sizes"])
        if self.num_copies:
            first, others = next(iter(self.copies.items()))
            yield f"{self.num_copies} copies of other files, for example {others[0]} of {first}"
        if page["repeated_captions"]:
            yield f"{page['repeated_captions']} captions were there before"


def _spread(values: list[Any]) -> dict[str, Any] | None:
    if not values:
        return None
    return {
        "min": min(values),
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        "max": max(values),
    }


def find(
    scanned: Scan,
    verdicts: Sequence[dict[str, Any]],
    suffixes: tuple[str, ...],
    sizes: Sequence[Size] | None,
    skips_short: bool,
) -> Findings:
    """Count what was seen.

    Args:
        scanned: The folder.
        verdicts: A Verdict as JSON for every row of it.
        suffixes: Of the media that were looked for.
        sizes: What media are cropped to; None: not at all.
        skips_short: Whether short videos are no fault.
    """
    findings = Findings(
        "videos" if suffixes == VIDEOS else "pictures", faults=list(scanned.faults), notes=list(scanned.notes)
    )
    findings.kinds["incomplete"] += len(scanned.faults)
    firsts: dict[bytes, int] = {}
    prepared = any(True for _ in manifest(scanned.path))
    digests: dict[str, bytes] = {}
    for row, ((name, caption), verdict) in enumerate(zip(scanned.rows, verdicts, strict=True)):
        if verdict["kind"] != "good":
            findings.kinds[verdict["kind"]] += 1
            skipped = verdict["kind"] == "animation" or (verdict["kind"] == "short" and skips_short)
            (findings.skipped if skipped else findings.faults).append(verdict["fault"])
            continue
        _count(findings, name, caption, verdict, sizes)
        digest = bytes.fromhex(verdict["sha256"])
        if prepared:
            digests[name] = digest
        if (first_row := firsts.setdefault(digest, row)) != row:
            findings.num_copies += 1
            first = scanned.rows[first_row][0]
            if first in findings.copies or len(findings.copies) < NAMED:
                findings.copies.setdefault(first, []).append(name)
    findings.of_manifest = _against_manifest(scanned.path, suffixes, digests)
    findings.faults += findings.of_manifest
    findings.kinds += Counter()  # drops zeros
    return findings


def _count(findings: Findings, name: str, caption: str, verdict: dict[str, Any], sizes: Sequence[Size] | None) -> None:
    findings.good += 1
    size = (verdict["height"], verdict["width"])
    findings.sizes[size] += 1
    if sizes is not None:
        findings.buckets[nearest(*size, sizes=sizes)] += 1
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
        digest = digests.get(entry["file"])
        if digest is None and not (path / entry["file"]).is_file():
            faults.append(f"{path / entry['file']}: is in the manifest and missing")
        elif digest is not None and digest.hex() != entry["sha256"]:
            faults.append(f"{path / entry['file']}: differs from what the manifest says was written")
    return faults
