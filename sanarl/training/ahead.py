"""The latents and embeddings of the next step, computed beside the training of this one where that is asked for."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from sanarl.data.module import Item
from sanarl.types import Cond


@dataclass(frozen=True)
class Encoded:
    """What training takes of a step's items."""

    latents: list[Tensor]
    cond: Cond | None
    """None without items."""

    def used_on(self, stream: Any) -> None:
        """Tell the allocator that tensors of another stream are read on this one."""
        parts = vars(self.cond).values() if self.cond is not None else ()
        for tensor in (*self.latents, *parts):
            if isinstance(tensor, Tensor):
                tensor.record_stream(stream)


@dataclass
class Ahead:
    """Takes a step's items and, where it works ahead, encodes those of the next on a stream of its own.

    The same items go through the same kernels, so nothing changes but the time. An item that cannot be read is told of
    by its own step.
    """

    take: Callable[[int], list[Item]]
    """The items of a step."""
    encode: Callable[[int, list[Item]], Encoded]
    device: torch.device
    works: bool
    """Whether it works ahead; otherwise everything happens when it is asked for."""
    _next: tuple[int, Future[tuple[list[Item], Encoded, Any]]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Start a thread, which has nothing to do yet."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encode") if self.works else None
        self._stream = torch.cuda.Stream(self.device) if self.works and self.device.type == "cuda" else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def items(self, step: int) -> tuple[list[Item], Encoded | None]:
        """The items of a step, and what they are encoded as when that was begun before."""
        if self._next is None or self._next[0] != step:
            return self.take(step), None
        items, encoded, done = self._next[1].result()
        if done is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(done)
            encoded.used_on(stream)
        return items, encoded

    def begin(self, step: int) -> None:
        """Begin with a step that will follow."""
        if self._thread is not None:
            # What the stream of training was given so far, the models' weights among it, comes first.
            ready = None if self._stream is None else torch.cuda.current_stream(self.device).record_event()
            self._next = step, self._thread.submit(self._work, step, ready)

    def settle(self) -> None:
        """Wait until nothing is done ahead: others need the models; failures wait for their step."""
        if self._next is not None:
            self._next[1].exception()

    def _work(self, step: int, ready: Any) -> tuple[list[Item], Encoded, Any]:
        items = self.take(step)
        if self._stream is None:
            return items, self.encode(step, items), None
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            encoded = self.encode(step, items)
            return items, encoded, self._stream.record_event()
