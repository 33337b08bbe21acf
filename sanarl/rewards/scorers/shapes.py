"""The verifiable reward of the shapes world, from the pixels alone.

Of pictures: count, colour, shape and position; of clips: count, colour, shape and direction of motion.
"""

import re
from typing import Any

import torch
from torch import Tensor

from sanarl.errors import UserError
from sanarl.shapes import clips, scoring

_QUOTED = re.compile(r'\s*"[^"]*"')


class Shapes:
    """Scores pictures against captions such as "a red circle left of a blue square", clips against "... moving right".

    See :func:`sanarl.shapes.scoring.score` and :func:`sanarl.shapes.clips.score`.
    """

    def __call__(self, media: Tensor, prompts: list[str], metadata: list[dict[str, Any]]) -> dict[str, Tensor]:  # noqa: ARG002  (every reward takes it)
        """The dense reward in [0, 1] and the strict one (1 where everything is right, else 0).

        Args:
            media: (B, F, 3, H, W) in [0, 1]; rounded to 8 bits before it is looked at. F is 1, or 3 and more.
            prompts: B captions of the shapes world, or of the one in motion for clips. Text in straight double quotes
                is not looked at: it is what ``ocr`` looks for.
            metadata: Not used.

        Returns:
            {"reward": (B,), "strict": (B,)}

        Raises:
            UserError: For clips of two frames, pixels that are not finite, and a prompt that is no such caption.
        """
        finite = torch.isfinite(media).flatten(1).all(1).tolist()
        if not all(finite):
            raise UserError(f"found NaN or infinity in the picture for prompt {prompts[finite.index(False)]!r}")
        pixels = media.clamp(0, 1).mul(255).round().to(torch.uint8).permute(0, 1, 3, 4, 2).cpu().numpy()
        scores = []
        for clip, prompt in zip(pixels, prompts, strict=True):  # (F, H, W, 3)
            caption = _QUOTED.sub("", prompt).strip()
            try:
                scores.append(scoring.score(clip[0], caption) if len(clip) == 1 else clips.score(clip, caption))
            except ValueError as error:
                raise UserError(f"prompt {prompt!r} cannot be scored: {error}") from error
        return {key: torch.tensor([s[key] for s in scores], dtype=torch.float32) for key in ("reward", "strict")}
