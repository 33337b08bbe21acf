"""Questions to a model behind an OpenAI-compatible endpoint: bounded in time, tries and size."""

import base64
import io
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch import Tensor

from sanarl.errors import UserError
from sanarl.rewards.packages import required

KEY_VARIABLE = "OPENAI_API_KEY"
LARGEST_ANSWER = 4 * 2**20  # bytes
LONGEST_PAUSE_S = 30.0


class Chat:
    """An endpoint's ``/chat/completions``.

    Args:
        reward: Who asks, for messages.
        url: Its base, such as http://host:8000/v1.
        key: Bearer token; None: the environment variable ``OPENAI_API_KEY``, or none at all.
        model: The name that it serves the model under.
        deadline_s: Seconds of one try, to the last byte of the answer.
        tries: Of one question; refusals that do not pass are not tried again.
        concurrent: Questions that are on their way at a time.
    """

    def __init__(
        self, reward: str, url: str | None, key: str | None, model: str, deadline_s: float, tries: int, concurrent: int
    ):
        if not url or not url.startswith(("http://", "https://")):
            accepted = "the base address of an OpenAI-compatible endpoint, such as http://host:8000/v1"
            raise UserError(f"{reward} is scored by a model behind an endpoint: found endpoint_url {url!r}; {accepted}")
        httpx = required("httpx", "httpx", reward)
        self.reward, self.model = reward, model
        self.url = f"{url.rstrip('/')}/chat/completions"
        self.deadline_s, self.tries, self.concurrent = deadline_s, tries, concurrent
        token = key or os.environ.get(KEY_VARIABLE, "")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._failures = (httpx.TransportError, TimeoutError)
        self._client = httpx.Client(headers=headers, timeout=httpx.Timeout(deadline_s, connect=min(10.0, deadline_s)))

    def ask(self, questions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The first choice of the answer to each question, in order.

        Args:
            questions: Fields of the request beside ``model``: ``messages`` and what else is wanted.

        Raises:
            UserError: The endpoint refused, stayed away, was too slow or answered something else; it is named.
        """
        with ThreadPoolExecutor(min(self.concurrent, max(1, len(questions)))) as pool:
            return list(pool.map(self._one, questions))

    def _one(self, question: dict[str, Any]) -> dict[str, Any]:
        cause = ""
        for number in range(self.tries):
            if number:
                time.sleep(min(0.5 * 2 ** (number - 1), LONGEST_PAUSE_S))
            try:
                status, body = self._post({"model": self.model, "temperature": 0, "stream": False} | question)
            except self._failures as error:
                cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                continue
            if status == 200:
                return self._choice(body)
            cause = f"status {status}: {body[:200].decode(errors='replace')}"
            if status not in (408, 425, 429) and status < 500:
                advice = f"; see endpoint_api_key or {KEY_VARIABLE}" if status in (401, 403) else ""
                raise UserError(f"{self.reward}: {self.url} refused with {cause}{advice}")
        raise UserError(f"{self.reward}: {self.url} gave no answer in {self.tries} tries; last: {cause}")

    def _post(self, body: dict[str, Any]) -> tuple[int, bytes]:
        """Status and answer; an answer that trickles in is cut off at the deadline."""
        limit = time.monotonic() + self.deadline_s
        found = bytearray()
        with self._client.stream("POST", self.url, json=body) as answer:
            for chunk in answer.iter_bytes():
                found += chunk
                if len(found) > LARGEST_ANSWER:
                    raise UserError(f"{self.reward}: {self.url} answered with more than {LARGEST_ANSWER} bytes")
                if time.monotonic() > limit:
                    raise TimeoutError(f"the answer was not there after {self.deadline_s:g} s")
            return answer.status_code, bytes(found)

    def _choice(self, body: bytes) -> dict[str, Any]:
        try:
            choice = json.loads(body)["choices"][0]
            if isinstance(choice["message"]["content"], str):
                return choice
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            pass
        raise UserError(f"{self.reward}: {self.url} gave no chat completion: {body[:200].decode(errors='replace')!r}")


def picture_part(frame: Tensor) -> dict[str, Any]:
    """A picture, uint8 (3, H, W), as a part of a message: PNG, so that nothing is lost."""
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_encoded(frame, 'PNG')}"}}


def clip_part(frames: Tensor) -> dict[str, Any]:
    """A clip, uint8 (F, 3, H, W), as a part of a message: JPEG frames separated by commas, which vLLM reads."""
    joined = ",".join(_encoded(frame, "JPEG") for frame in frames)
    return {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{joined}"}}


def _encoded(frame: Tensor, kind: str) -> str:
    from PIL import Image

    file = io.BytesIO()
    image = Image.fromarray(frame.permute(1, 2, 0).cpu().numpy())
    image.save(file, kind, **({"quality": 95, "subsampling": 0} if kind == "JPEG" else {}))
    return base64.b64encode(file.getvalue()).decode()
