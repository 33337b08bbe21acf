"""The verifiable reward of the shapes world: count, colour, shape and position, from the pixels alone."""

from typing import Any

import torch
from torch import Tensor

from sanarl.errors import UserError
from sanarl.shapes import scoring


class Shapes:
    """Scores pictures against shapes captions such as "a red circle left of a blue square"."""

    def __call__(self, media: Tensor, prompts: list[str], metadata: list[dict[str, Any]]) -> dict[str, Tensor]:  # noqa: ARG002  (every reward takes it)
        """The dense reward in [0, 1] and the strict one (1 where everything is right, else 0).

        Args:
            media: (B, 1, 3, H, W) in [0, 1]; rounded to 8 bits before it is looked at.
            prompts: B captions of the shapes world.
            metadata: Not used.

        Returns:
            {"reward": (B,), "strict": (B,)}

        Raises:
            UserError: For clips, for pixels that are not finite, and for a prompt that is no shapes caption.
        """
        if media.shape[1] != 1:
            raise UserError(f"found clips of {media.shape[1]} frames; accepted: pictures (one frame)")
        finite = torch.isfinite(media).flatten(1).all(1).tolist()
        if not all(finite):
            raise UserError(f"found NaN or infinity in the picture for prompt {prompts[finite.index(False)]!r}")
        frames = media[:, 0].clamp(0, 1).mul(255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu()  # (B, H, W, 3)
        scores = []
        for frame, prompt in zip(frames, prompts, strict=True):
            try:
                scores.append(scoring.score(frame.numpy(), prompt))
            except ValueError as error:
                raise UserError(f"prompt {prompt!r} cannot be scored: {error}") from error
        return {key: torch.tensor([s[key] for s in scores], dtype=torch.float32) for key in ("reward", "strict")}
