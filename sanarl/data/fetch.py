"""Prompt sets that are fetched or made: a small table, and files that are whole or absent."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sanarl.data import geneval, ocr, vidprom
from sanarl.data.download import File, Seen, download
from sanarl.data.home import home, locked
from sanarl.data.inspection import sha256
from sanarl.data.prepared import write_whole
from sanarl.data.prompts import read_metadata, read_prompts
from sanarl.errors import UserError
from sanarl.importing import nearest

NFT = "https://raw.githubusercontent.com/NVlabs/DiffusionNFT/24af5554898d85e93efa492f42b5e9cdf4156e9b/dataset"
DANCE = "https://raw.githubusercontent.com/XueZeyue/DanceGRPO/15cc71d53cc2e6e18a68ee607d5fb6ba9a99e344/assets"
TRAIN, TEST = "train.txt", "test.txt"
TRAIN_LINES, TEST_LINES = "train_metadata.jsonl", "test_metadata.jsonl"


@dataclass(frozen=True)
class PromptSet:
    """Where a prompt set comes from."""

    what: str
    licence: str
    files: tuple[File, ...] = ()
    made: Callable[[Path], Iterator[tuple[str, bytes]]] | None = None
    """Makes further files (name, content) from what is in the folder."""
    can_do_without: bool = False
    """Whether ``made`` makes what cannot be fetched as well."""
    reader: Callable[[Path, Path], dict[str, Any]] | None = None
    """Turns the one file that is fetched, or that a person has, into those of the folder, and gives a report."""


def _geneval(folder: Path) -> Iterator[tuple[str, bytes]]:
    test = folder / TEST_LINES
    if test.is_file():
        barred = frozenset(item["prompt"] for item in read_metadata(test))
    else:
        barred = frozenset[str]()
        yield TEST_LINES, _lines(json.dumps(line) for line in geneval.test_set())
    yield TRAIN_LINES, _lines(json.dumps(line) for line in geneval.train_set(exclude=barred))


def _ocr(folder: Path) -> Iterator[tuple[str, bytes]]:
    test = folder / TEST
    if test.is_file():
        barred = frozenset(item["prompt"] for item in read_prompts(test))
    else:
        barred = frozenset[str]()
        yield TEST, _lines(ocr.test_set())
    yield TRAIN, _lines(ocr.train_set(exclude=barred))


def _dance(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Its one list, cut: the last thousand are held out."""
    prompts = [item["prompt"] for item in read_prompts(folder / "video_prompts.txt")]
    held_out = set(prompts[-1000:])
    yield TEST, _lines(prompts[-1000:])
    yield TRAIN, _lines(prompt for prompt in prompts[:-1000] if prompt not in held_out)


def _vidprom(source: Path, folder: Path) -> dict[str, Any]:
    train, test, report = vidprom.select(source)
    write_whole(folder / TEST, _lines(test))
    write_whole(folder / TRAIN, _lines(train))  # last: it says that the others are there
    return report


def _lines(texts: Any) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


APACHE = "Apache-2.0 (the repository's)"
SETS: dict[str, PromptSet] = {
    "pickscore": PromptSet(
        "prompts that people gave to Pick-a-Pic",
        f"{APACHE}; Pick-a-Pic, which they are from: MIT",
        (
            File(
                TRAIN,
                f"{NFT}/pickscore/train.txt",
                2_906_730,
                "2f425adcbb9a6d0feee7c6c448e1cb83a1f71deca9434b803907e2578eca837f",
            ),
            File(
                TEST,
                f"{NFT}/pickscore/test.txt",
                239_891,
                "d75c025fa451866e70f7e36243f7cdd93095523cb51f5f9651f2ce3236d20262",
            ),
        ),
    ),
    "ocr": PromptSet(
        "pictures with a text in quotes; train is made here, test is Flow-GRPO's when fetched",
        f"{APACHE}; what is made here: this package's",
        (
            File(
                TEST,
                f"{NFT}/ocr/test.txt",
                217_565,
                "4dd8caf3ab6ade73bd376c7d14c6ca49b6eacfb1bd321e22c40714ae4a98d4dc",
            ),
        ),
        _ocr,
        can_do_without=True,
    ),
    "geneval": PromptSet(
        "objects, counts, colours and positions; train is made here, test is DiffusionNFT's when fetched",
        f"{APACHE}; GenEval's recipe: MIT",
        (
            File(
                TEST_LINES,
                f"{NFT}/geneval/test_metadata.jsonl",
                340_835,
                "cec4b24b9fee7bac21c8f787054ecc8dc9ff831674037713a4cd35e0f0a74a28",
            ),
        ),
        _geneval,
        can_do_without=True,
    ),
    "drawbench": PromptSet(
        "DrawBench's prompts, to evaluate on: there is no training set",
        f"{APACHE}; DrawBench, which they are from: none found stated",
        (
            File(
                TEST,
                f"{NFT}/drawbench/test.txt",
                65_164,
                "9006b98feabb94b28a2bc0c88de42fd4f31a9ec3c2a19e308a02c5385b7172f0",
            ),
        ),
    ),
    "dance_grpo_t2v": PromptSet(
        "DanceGRPO's prompts for video; the last 1,000 are held out",
        f"{APACHE}; VidProM, which they are from: CC BY-NC 4.0",
        (
            File(
                "video_prompts.txt",
                f"{DANCE}/video_prompts.txt",
                3_839_720,
                "c96ceb6c93c16809f6fef53d6d488c34c78823e5edd20f6d907d90c9e5653db1",
            ),
        ),
        _dance,
    ),
    "vidprom": PromptSet(
        "VidProM's prompts for video, filtered by toxicity, length and duplicates",
        "CC BY-NC 4.0",
        (
            File(
                "VidProM_unique.csv",
                "https://huggingface.co/datasets/WenhaoWang/VidProM/resolve/main/VidProM_unique.csv",
                382_734_674,
                "7668b87803b67638fa899b69f3a2a298ea13daffe508ce625e21937bff958b6e",
            ),
        ),
        reader=_vidprom,
    ),
}


def cached(name: str) -> Path:
    """The folder that a prompt set is fetched into."""
    return home() / "datasets" / name


def is_offline() -> bool:
    """Whether the environment says that the network is not to be used."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "yes", "true")


def bring(
    name: str, out: Path | None = None, source: Path | None = None, seen: Seen = lambda _done, _total: None
) -> list[str]:
    """Fetch or make a prompt set; what is there and right is left alone.

    Args:
        name: One of SETS.
        out: The folder; None: ``cached(name)``.
        source: A file that the person has, for sets that are made of one large file.
        seen: Told how many bytes of a file of how many are there.

    Returns:
        Lines for the person: licence, and what became of each file.

    Raises:
        UserError: If there is no such set, or a file can be neither fetched nor made; it says what to put where.
    """
    if name not in SETS:
        raise UserError(f"there is no prompt set {name!r}{nearest(name, list(SETS))}\n  accepted: {', '.join(SETS)}")
    one, folder = SETS[name], out or cached(name)
    if source is not None and one.reader is None:
        raise UserError(f"--from: {name} is made of no single file; it is fetched or made without one")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / ".lock"):
            lines = [f"{name}: {one.what}; licence: {one.licence}", f"in {folder}"]
            if one.reader is not None:
                return lines + _read(one, folder, source, seen)
            for file in one.files:
                lines.append(_fetched(file, folder, seen, required=not one.can_do_without))
            return lines + _made(one, folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror or error}") from error


def _read(one: PromptSet, folder: Path, source: Path | None, seen: Seen) -> list[str]:
    """Make a set of its one large file, which is not kept when it was fetched."""
    assert one.reader is not None, "asked of a set that is read"
    (file,) = one.files
    if source is None and (folder / TRAIN).is_file():
        return [f"{TRAIN}: was there"]
    lines, place = [], folder / file.name
    was_there = place.is_file()
    if source is None:
        lines.append(_fetched(file, folder, seen))
    elif source.is_file() and sha256(source) != file.sha256:
        lines.append(
            f"{source}: differs from the {file.name} that is known here (sha256 {file.sha256}); taken as it is"
        )
    report = one.reader(source or place, folder)
    write_whole(folder / "report.json", json.dumps(report, indent=1).encode())
    if source is None and not was_there:
        place.unlink()
    lines.append(f"{TRAIN}, {TEST}: made of {source or file.name}")
    return [*lines, *(f"  {count} {key}" for key, count in report["counts"].items())]


def _made(one: PromptSet, folder: Path) -> list[str]:
    lines = []
    for file, content in one.made(folder) if one.made else ():
        if not (folder / file).is_file() or (folder / file).read_bytes() != content:
            write_whole(folder / file, content)
            count = content.count(b"\n")
            lines.append(f"{file}: made, {count} lines")
        else:
            lines.append(f"{file}: was there")
    return lines


def _fetched(file: File, folder: Path, seen: Seen, required: bool = True) -> str:
    """Bring one file, unless it is there; a line on it."""
    place = folder / file.name
    if place.is_file() and place.stat().st_size == file.size and sha256(place) == file.sha256:
        return f"{file.name}: was there"
    try:
        if is_offline():
            raise UserError(f"{file.url}: not fetched, as HF_HUB_OFFLINE is set")
        download(file, folder, seen)
    except UserError as error:
        if not required:
            return f"{file.name}: made here instead of fetched ({error})"
        raise UserError(
            f"{error}\n  without network, put that file ({file.size} bytes, sha256 {file.sha256}) at {place}\n"
            "  and say the same again; or name a folder of your own in dataset.local_dir"
        ) from error
    return f"{file.name}: fetched, {file.size} bytes"
