"""A map over threads that keeps order and does not run ahead of its consumer."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def workers() -> int:
    """Threads for decoding: one a core that this process may use, at most 32."""
    return min(32, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def ordered_map(
    function: Callable[[T], R],
    items: Iterable[T],
    threads: int | None = None,
    is_quick: Callable[[T], bool] = lambda _: False,
) -> Iterator[R]:
    """``map``, computed by several threads; a few results a thread wait at most, so memory stays constant.

    An exception of ``function`` is raised where its result would have come; whatever was not started then never is.
    Items that are quick are computed by the caller, which costs less than asking a thread.
    """
    threads = threads or workers()
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                if is_quick(item):
                    future: Future[R] = Future()
                    future.set_result(function(item))
                else:
                    future = pool.submit(function, item)
                if not waiting and future.done():
                    yield future.result()
                    continue
                waiting.append(future)
                if len(waiting) > 4 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
