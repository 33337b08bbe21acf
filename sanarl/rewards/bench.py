"""Load for a reward service: several clients that send batches as training does, and how long answers took."""

import math
import threading
import time
from dataclasses import dataclass, field

import numpy as np

from sanarl.rewards.exchange import Addresses, Exchange, Order


@dataclass(frozen=True)
class Load:
    """What came of it."""

    clients: int
    images: int
    """Pictures of a request."""
    nbytes: int
    """Bytes of a request's pictures."""
    seconds: float
    """From the first request to the last answer."""
    latencies: list[float] = field(repr=False)
    """Seconds from each request to its scores, in the order of the answers."""
    answered: list[float] = field(repr=False)
    """When each answer came, in seconds from the first request."""

    @property
    def busy_s(self) -> float:
        """Seconds a request takes of a service that always has the next one: the mean time between answers."""
        return (self.answered[-1] - self.answered[0]) / max(len(self.answered) - 1, 1)

    @property
    def requests_per_s(self) -> float:
        """Requests answered a second."""
        return len(self.latencies) / self.seconds

    @property
    def mb_per_s(self) -> float:
        """Megabytes of pictures a second."""
        return self.requests_per_s * self.nbytes / 1e6

    def percentile(self, share: float) -> float:
        """The latency that a share of the requests did not exceed."""
        ordered = sorted(self.latencies)
        return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]

    def lines(self) -> list[str]:
        """The figures for people."""
        return [
            f"{len(self.latencies)} requests of {self.images} pictures ({self.nbytes / 1e6:.1f} MB), "
            f"{self.clients} clients, {self.seconds:.2f} s",
            f"{self.requests_per_s:.3f} requests/s, {self.requests_per_s * self.images:.1f} pictures/s, "
            f"{self.mb_per_s:.1f} MB/s",
            f"{self.busy_s:.3f} s between answers; latency p50 {self.percentile(0.5):.3f} s, "
            f"p95 {self.percentile(0.95):.3f} s",
        ]


def run(where: Addresses, reward: str, prompt: str, images: int, size: int, requests: int, clients: int) -> Load:
    """Send ``requests`` batches of noise from ``clients`` threads, each waiting for its scores before the next.

    Args:
        where: The service.
        reward: What to ask for; its score must stand under its own name or its usual key.
        prompt: Of every picture.
        images: Pictures of a request.
        size: Their height and width.
        requests: In all.
        clients: At a time.

    Raises:
        RewardError: When a request fails.
    """
    from sanarl.rewards.answers import MAIN_KEYS

    media = np.random.default_rng(0).integers(0, 256, (images, size, size, 3), dtype=np.uint8)
    order = Order([prompt] * images, media, [{}] * images, [(reward, MAIN_KEYS.get(reward, reward))])
    exchange = Exchange(where, {reward: 1.0}, deadline_s=600.0, patience_s=60.0)
    latencies: list[float] = []
    answered: list[float] = []
    failures: list[BaseException] = []
    left = iter(range(requests))
    lock = threading.Lock()

    def client() -> None:
        while not failures:
            with lock:
                if next(left, None) is None:
                    return
            started = time.perf_counter()
            try:
                exchange.score(order)
            except BaseException as error:  # raised again below
                failures.append(error)
                return
            now = time.perf_counter()
            with lock:
                latencies.append(now - started)
                answered.append(now - begin)

    threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    exchange.close()
    if failures:
        raise failures[0]
    return Load(clients, images, media.nbytes, seconds, latencies, answered)
