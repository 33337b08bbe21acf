"""Pictures and clips as files that say how they were made."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from sanarl import __version__
from sanarl.errors import UserError
from sanarl.rollout.preview import sheet
from sanarl.rollout.signed import file_name, write_signed
from sanarl.using.drawing import Drawing, drawn
from sanarl.using.subject import Subject

ON_A_SHEET = 64
"""Samples that the sheet shows, the first."""


def signature(subject: Subject, drawing: Drawing, which: str, row: int) -> dict[str, str]:
    """What a file says of itself: enough to draw it again."""
    config, sampler = subject.config, drawing.sampler
    height, width = config.policy.diffusers.inference_size
    said = {
        "prompt": drawing.prompt(row),
        "seed": str(drawing.seed),
        "sample": str(row),
        "steps": str(sampler.num_steps),
        "guidance": f"{sampler.guidance_scale:g}",
        "solver": sampler.solver,
        "flow_shift": f"{sampler.flow_shift:g}",
        "size": f"{width}x{height}",
        "model": subject.model,
    }
    if config.policy.model_revision is not None:
        said["revision"] = config.policy.model_revision
    if config.modality == "video":
        said |= {"frames": str(config.sample_frames), "fps": f"{config.policy.diffusers.fps:g}"}
    said["adapter"] = subject.adapter if which == "trained" and subject.adapter is not None else "none"
    if which == "trained" and subject.step is not None:
        said["step"] = str(subject.step)
    return said | {"sanarl": __version__}


def sample(subject: Subject, drawing: Drawing, folder: Path, compare: bool, say: Callable[[Path], None]) -> list[Path]:
    """Write every sample of a drawing.

    Args:
        subject: what draws.
        drawing: what is drawn.
        folder: gets ``NUMBER_WORDS_HASH.png`` (or mp4); with ``compare`` in ``base/``, ``trained/`` and, both in one
            file from the same noise, base on the left, ``side_by_side/``; ``sheet.png`` shows the first.
        compare: draw with the base's values as well.
        say: told of every file.

    Raises:
        UserError: when there is nothing to compare, or the folder cannot be written.
    """
    if compare and "trained" not in subject.values:
        raise UserError("--compare: there is only the base here; name a run with a saved step, or --model with --lora")
    arms = ["base", "trained"] if compare else [subject.newest]
    written: list[Path] = []
    shown: list[tuple[str, list[tuple[Tensor, float | None]]]] = []

    def write(place: Path, row: int, media: Tensor, said: dict[str, str]) -> None:
        path = place / file_name(row, drawing.prompt(row), media)
        write_signed(media, path, subject.config.policy.diffusers.fps, said)
        written.append(path)
        say(path)

    try:
        for batch in drawing.batches():
            media = {which: torch.cat([m for _, m in drawn(subject, which, drawing, [batch])]).cpu() for which in arms}
            for place, row in enumerate(batch):
                found = {which: media[which][place] for which in arms}
                for which, one in found.items():
                    target = folder / which if compare else folder
                    write(target, row, one, signature(subject, drawing, which, row))
                if compare:
                    both = torch.cat(list(found.values()), dim=-1)
                    write(
                        folder / "side_by_side",
                        row,
                        both,
                        {"left": "base", "right": "trained"} | signature(subject, drawing, "trained", row),
                    )
                if len(shown) < ON_A_SHEET:
                    shown.append((drawing.prompt(row), [(one, None) for one in found.values()]))
        if len(shown) > 1 or compare:
            sheet(shown, folder / "sheet.png")
            written.append(folder / "sheet.png")
            say(folder / "sheet.png")
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written: {error.strerror or error}") from error
    return written
