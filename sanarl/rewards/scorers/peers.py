"""Rewards whose models Cosmos-RL's reward service runs: HPSv3 and VideoAlign (dance_grpo), asked of such a service."""

import os
from typing import Any

import torch
from torch import Tensor

from sanarl.errors import UserError
from sanarl.rewards.exchange import Addresses, Exchange, Order
from sanarl.rewards.frames import eight_bit, framewise, over_frames_named


class _Service:
    """One reward of a service.

    Args:
        reward: Its name there.
        keys: The scores to read; the first one counts.
        url: .../api/reward, with or without the last part of its addresses.
        token: None: ``REMOTE_REWARD_TOKEN`` of the environment, or none.
        deadline_s: Seconds from an accepted request to its scores.
        patience_s: Seconds to wait for a service that does not answer.
    """

    def __init__(
        self,
        reward: str,
        keys: tuple[str, ...],
        url: str | None,
        token: str | None,
        deadline_s: float,
        patience_s: float,
    ):
        if not url or not url.startswith(("http://", "https://")):
            accepted = "the address of a reward service, such as http://host:port/api/reward"
            raise UserError(f"{reward} is scored by a service: found endpoint_url {url!r}; accepted: {accepted}")
        base = url.rstrip("/").removesuffix("/enqueue").removesuffix("/pull")
        where = Addresses((f"{base}/enqueue",), (f"{base}/pull",), token or os.environ.get("REMOTE_REWARD_TOKEN", ""))
        self.reward, self.keys = reward, keys
        self.exchange = Exchange(where, {reward: 1.0}, deadline_s, patience_s)

    def ask(
        self, media: Tensor, prompts: list[str], metadata: list[dict[str, Any]], batch_size: int
    ) -> dict[str, Tensor]:
        """Key -> (B,) for media (B, F, 3, H, W) in [0, 1]."""
        columns: list[list[float]] = [[] for _ in self.keys]
        for start in range(0, len(prompts), batch_size):
            rows = slice(start, start + batch_size)
            pixels = eight_bit(media[rows])
            pixels = pixels[:, 0].permute(0, 2, 3, 1) if media.shape[1] == 1 else pixels.transpose(1, 2)
            wanted = [(self.reward, key) for key in self.keys]
            order = Order(prompts[rows], pixels.contiguous().cpu().numpy(), metadata[rows], wanted)
            for column, found in zip(columns, self.exchange.score(order), strict=True):
                column += found
        return {key: torch.tensor(column) for key, column in zip(self.keys, columns, strict=True)}


class HPSv3:
    """HPSv3 (Ma et al. 2025, https://github.com/MizzenAI/HPSv3) of a reward service.

    Scale: the mean of the preference that the model predicts, unbounded, usually 0 to 15.

    Args:
        endpoint_url: The service, such as http://host:port/api/reward.
        endpoint_api_key: Its token; None: ``REMOTE_REWARD_TOKEN`` of the environment, or none.
        batch_size: Pictures of one request.
        deadline_s: Seconds from an accepted request to its scores.
        patience_s: Seconds to wait for a service that does not answer.
        frames: Frames of a clip that are scored.
        over_frames: What their scores become: "mean" or "min".
    """

    def __init__(
        self,
        endpoint_url: str | None = None,
        endpoint_api_key: str | None = None,
        batch_size: int = 8,
        deadline_s: float = 600.0,
        patience_s: float = 1800.0,
        frames: int = 8,
        over_frames: str = "mean",
    ):
        self.service = _Service("hpsv3", ("hpsv3",), endpoint_url, endpoint_api_key, deadline_s, patience_s)
        self.batch_size, self.frames, self.over = batch_size, frames, over_frames_named(over_frames)

    def __call__(self, media: Tensor, prompts: list[str], metadata: list[dict[str, Any]]) -> Tensor:
        """(B,) float32 for media (B, F, 3, H, W) in [0, 1]; clips are scored frame by frame."""
        asked = list(zip(prompts, metadata, strict=True))
        return framewise(media, asked, self.frames, self.batch_size, self._score, self.over)

    def _score(self, frames: Tensor, asked: list[tuple[str, dict[str, Any]]]) -> Tensor:
        prompts, metadata = [prompt for prompt, _ in asked], [one for _, one in asked]
        return self.service.ask(frames[:, None].float() / 255, prompts, metadata, self.batch_size)["hpsv3"]


class DanceGRPO:
    """VideoAlign (Liu et al. 2025, https://github.com/KwaiVGI/VideoAlign), as DanceGRPO uses it, of a reward service.

    Scale: ``overall_reward``, which counts, is the sum of visual quality, motion quality and alignment with the text,
    each standardised over the authors' data.

    Args:
        endpoint_url: The service, such as http://host:port/api/reward.
        endpoint_api_key: Its token; None: ``REMOTE_REWARD_TOKEN`` of the environment, or none.
        fps: Frames a second of the clips, where a sample's metadata have no ``video_fps``.
        batch_size: Clips of one request.
        deadline_s: Seconds from an accepted request to its scores.
        patience_s: Seconds to wait for a service that does not answer.
    """

    def __init__(
        self,
        endpoint_url: str | None = None,
        endpoint_api_key: str | None = None,
        fps: float = 16.0,
        batch_size: int = 1,
        deadline_s: float = 600.0,
        patience_s: float = 1800.0,
    ):
        keys = ("overall_reward", "vq_reward", "mq_reward", "ta_reward")
        self.service = _Service("dance_grpo", keys, endpoint_url, endpoint_api_key, deadline_s, patience_s)
        self.fps, self.batch_size = fps, batch_size

    def __call__(self, media: Tensor, prompts: list[str], metadata: list[dict[str, Any]]) -> dict[str, Tensor]:
        """{"reward": (B,), "vq_reward", "mq_reward", "ta_reward"} for clips (B, F, 3, H, W) in [0, 1].

        Raises:
            UserError: For pictures.
        """
        if media.shape[1] < 2:
            raise UserError("found pictures; accepted: clips of two frames and more")
        timed = [{"video_fps": self.fps} | one for one in metadata]
        scores = self.service.ask(media, prompts, timed, self.batch_size)
        return {"reward": scores.pop("overall_reward"), **scores}
