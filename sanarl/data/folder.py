"""A folder of pictures or videos with captions."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import av
import PIL
from torch import Tensor

from sanarl.data.buckets import Size
from sanarl.data.findings import Findings, find
from sanarl.data.inspection import Verdict, inspect, sha256
from sanarl.data.media import WHITE, Animation, Colour, decode_cropped, decode_image, examine
from sanarl.data.prompts import fault_page
from sanarl.data.scan import PICTURES, VIDEOS, Scan, scan
from sanarl.data.video import Clip, ShortClip, decode_clip, examine_clip, probe
from sanarl.errors import UserError

OnBad = Literal["error", "skip"]
DECODERS = f"decoding 1, Pillow {PIL.__version__}, PyAV {av.__version__}"
"""What else the values of pixels depend on: our own steps, and the libraries that do the work."""
NAMED = 20  # skipped files that are named; the others are counted


@dataclass(frozen=True)
class View:
    """How files become tensors."""

    sizes: tuple[Size, ...] | None
    """(height, width) to cover-crop to, the one whose aspect is nearest; None: the media's own size."""
    clip: Clip | None = None
    """Read videos so; None: pictures."""
    background: Colour = WHITE
    """What shows through transparent pictures."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Of the files that are read."""
        return PICTURES if self.clip is None else VIDEOS

    @property
    def skips_short(self) -> bool:
        """Whether videos that are too short are left out whatever becomes of damaged ones."""
        return self.clip is not None and self.clip.short == "skip"

    def read(self, path: Path) -> Tensor:
        """Media (F, 3, H, W): uint8 of 8-bit files, float32 in [0, 1] of others.

        Raises:
            UserError: If the file cannot be used, naming it.
        """
        if self.clip is not None:
            return decode_clip(path, self.clip, self.sizes)
        if self.sizes is None:
            return decode_image(path, self.background)[None]
        return decode_cropped(path, self.sizes, self.background)[None]

    def look(self, path: Path) -> Verdict:
        """Decode a file as ``read`` does, keep nothing of it, and say what it is."""
        try:
            height, width = examine(path) if self.clip is None else examine_clip(path, self.clip)
            frames, seconds = (self.clip.frames, self.clip.frames / self.clip.fps) if self.clip else (1, 0.0)
            return Verdict("good", "", sha256(path), height, width, frames, seconds)
        except Animation as error:
            return Verdict("animation", str(error))
        except ShortClip as error:
            return Verdict("short", str(error))
        except (UserError, OSError) as error:
            return Verdict("bad", str(error))

    @property
    def label(self) -> str:
        """What ``look`` depends on."""
        return "pictures" if self.clip is None else f"clips {self.clip.frames} {self.clip.fps} {self.clip.short}"


def look_at_video(path: Path) -> Verdict:
    """Decode a whole video and say what it holds."""
    try:
        found = probe(path)
        return Verdict("good", "", sha256(path), found.height, found.width, found.frames, found.seconds, found.claimed)
    except (UserError, OSError) as error:
        return Verdict("bad", str(error))


@dataclass
class Kept:
    """What of a folder can be used, and what was left out and why."""

    rows: "array[int]" = field(default_factory=lambda: array("Q"))
    """Numbers of the good rows of the scan."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Why -> how many: "no caption or media", "bad", "animation", "short"."""
    faults: list[str] = field(default_factory=list)
    """One line each of what is wrong."""


class MediaFolder(Sequence[dict[str, Any]]):
    """Items ``{"prompt": str, "media": (F, 3, H, W)}`` of a folder, decoded when they are taken.

    Which files are read and in which order: see ``sanarl.data.scan.scan``.

    Args:
        path: The folder.
        view: How files become tensors.
        keys: Names that the caption may have in json files and tables.
        on_bad: What becomes of pairs that are incomplete or cannot be decoded.

    Raises:
        UserError: If the folder is missing or holds no usable pair.
    """

    def __init__(self, path: str | Path, view: View, keys: Sequence[str] = ("prompt",), on_bad: OnBad = "error"):
        self.path, self.view, self.on_bad = Path(path), view, on_bad
        self.scanned = scan(self.path, view.suffixes, keys)
        if not self.scanned.rows:
            raise nothing_usable(self.scanned, view.suffixes)
        self.kept = Kept(array("Q", range(len(self.scanned.rows))))
        self.findings: Findings | None = None

    @property
    def prompts(self) -> list[str]:
        """The captions, in order."""
        return [self.scanned.rows[row][1] for row in self.kept.rows]

    @property
    def notes(self) -> list[str]:
        """Lines on what was left out and, once it was verified, on what is there."""
        lines = list(self.scanned.notes)
        if self.kept.faults:
            counts = ", ".join(f"{n} {kind}" for kind, n in self.kept.skipped.most_common())
            lines.append(f"{self.path}: {len(self.kept.faults)} of {self.total} pairs skipped ({counts})")
            lines += [f"  {fault}" for fault in self.kept.faults[:NAMED]]
            if len(self.kept.faults) > NAMED:
                lines.append(f"  and {len(self.kept.faults) - NAMED} more")
        if self.findings is not None:
            lines += self.findings.of_manifest[:NAMED]
            lines += [f"  {line}" for line in self.findings.statistics()]
        return lines

    @property
    def total(self) -> int:
        """Pairs with and without fault."""
        return len(self.scanned.rows) + len(self.scanned.faults)

    def __len__(self) -> int:
        return len(self.kept.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:  # type: ignore[override]  # slices are not offered
        name, prompt = self.scanned.rows[self.kept.rows[index]]
        return {"prompt": prompt, "media": self.view.read(self.path / name)}

    def described(self, index: int) -> dict[str, Any]:
        """``{"prompt", "content"}`` of an item without decoding it.

        ``content`` is the hash of the file as it is now and of how it is read: sizes, crop, frames, colour behind.

        Raises:
            UserError: If the file cannot be read.
        """
        name, prompt = self.scanned.rows[self.kept.rows[index]]
        try:
            digest = sha256(self.path / name)
        except OSError as error:
            raise UserError(f"{self.path / name}: cannot be read: {error.strerror or error}") from error
        return {"prompt": prompt, "content": f"{digest} {self.view} {DECODERS}"}

    def verify(self, seen: Callable[[int], None] = lambda _: None) -> None:
        """Decode every file once, so that a damaged one is found before step 1, and keep what is good.

        Animations are left out; clips that are too short as the view's policy says; the rest as ``on_bad`` says.

        Raises:
            UserError: Under "error" listing everything that is wrong, with captions and with media, at once; or when
                nothing is left.
        """
        verdicts = inspect(self.path, self.scanned.rows, self.view.look, self.view.label, seen)
        self.kept = self._keep(verdicts)
        self.findings = find(
            self.scanned, verdicts, self.view.suffixes, self.view.sizes, skips_short=self.view.skips_short
        )
        unread = [v["fault"] for v in verdicts if not self._may_skip(v["kind"])]
        what = "pictures" if self.view.clip is None else "videos"
        words = f"{len(unread)} of {len(verdicts)} {what} cannot be read"
        refuse(self.scanned, unread, words, self.on_bad, self.findings.of_manifest)
        if not self.kept.rows:
            raise fault_page(f"{self.path}: nothing is left of {self.total} pairs", self.kept.faults)

    def _may_skip(self, kind: str) -> bool:
        return kind in ("good", "animation") or self.on_bad == "skip" or (kind == "short" and self.view.skips_short)

    def _keep(self, verdicts: Sequence[Any]) -> Kept:
        kept = Kept()
        kept.faults += self.scanned.faults
        kept.skipped["incomplete"] += len(self.scanned.faults)
        for row, verdict in enumerate(verdicts):
            if verdict["kind"] == "good":
                kept.rows.append(row)
            else:
                kept.skipped[verdict["kind"]] += 1
                kept.faults.append(verdict["fault"])
        kept.skipped += Counter()  # drops zeros
        return kept

    @property
    def fingerprint(self) -> str:
        """Hash of the names and captions that are left, to compare between processes."""
        state = hashlib.sha256()
        for row in self.kept.rows:
            state.update("\0".join(self.scanned.rows[row]).encode(errors="surrogateescape") + b"\1")
        return state.hexdigest()


def refuse(found: Scan, unread: list[str], words: str, on_bad: OnBad, others: Sequence[str] = ()) -> None:
    """Raise one error that lists everything that is wrong with a folder, when there is something.

    Args:
        found: Its own faults count unless bad pairs are skipped.
        unread: Faults of files that may not be skipped.
        words: How many they are.
        on_bad: See MediaFolder.
        others: Faults of another kind, which may be skipped as well.

    Raises:
        UserError: See above.
    """
    incomplete = [*found.faults, *others] if on_bad == "error" else []
    if incomplete:
        total = len(incomplete) + len(unread)
        words = f"{total} faults" + (f"; {words}" if unread else "")
    if incomplete or unread:
        raise fault_page(f"{found.path}: {words}", [*incomplete, *unread])


def nothing_usable(found: Scan, suffixes: Sequence[str]) -> UserError:
    """The error for a folder without a single pair."""
    if found.faults:
        return fault_page(f"{found.path}: found no usable pair; {len(found.faults)} faults", found.faults)
    accepted = f"NAME.json or NAME.txt beside NAME with {', '.join(suffixes)}, or a table of captions (metadata.jsonl)"
    return UserError(f"{found.path}: found {found.inventory}; accepted: {accepted}")


def captions(path: Path, keys: Sequence[str] = ("prompt",), on_bad: OnBad = "error") -> list[str]:
    """The captions of a folder, with or without media, in the order of the sorted paths.

    Every json file that stands alone counts; of files in pairs and in tables the captions.

    Raises:
        UserError: If the folder is missing or holds no caption; or, unless bad ones are skipped, listing every one.
    """
    found = scan(path, (*PICTURES, *VIDEOS), keys, alone=True)
    if found.faults and on_bad == "error":
        raise fault_page(f"{path}: {len(found.faults)} faults", found.faults)
    if not found.rows:
        raise UserError(f'{path}: found {found.inventory}; accepted: json files with {{"{keys[0]}": ...}}')
    return [caption for _, caption in found.rows]
