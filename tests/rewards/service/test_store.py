"""Results in memory: the first counts, they stay for a time, and there is an end to their number."""

import asyncio
import time

import pytest

from sanarl.rewards.server import store
from sanarl.rewards.server.store import Found, Memory


def test_the_first_result_counts():
    async def check():
        memory = Memory(60.0)
        await memory.open("u", ["a", "b"])
        assert await memory.get("u", "a") == Found("pending")
        assert await memory.put("u", "a", "1")
        assert not await memory.put("u", "a", "2")
        assert not await memory.put("u", "c", "3")
        assert not await memory.put("v", "a", "4")
        assert await memory.get("u", "a") == Found("done", "1")
        assert await memory.get("u", "b") == Found("pending")
        assert await memory.get("u", "c") == Found("unasked")
        assert await memory.get("v", "a") == Found("unknown")

    asyncio.run(check())


def test_results_are_forgotten_and_unfinished_requests_are_not():
    async def check():
        memory = Memory(0.05)
        for uuid in ("done", "open"):
            await memory.open(uuid, ["a"])
        await memory.put("done", "a", "1")
        time.sleep(0.06)
        assert await memory.get("done", "a") == Found("unknown")
        assert await memory.get("open", "a") == Found("pending")

    asyncio.run(check())


@pytest.mark.parametrize("finished", [True, False])
def test_their_number_is_bounded(monkeypatch, finished):
    async def check():
        monkeypatch.setattr(store, "MOST", 3)
        memory = Memory(60.0)
        for number in range(5):
            await memory.open(str(number), ["a"])
            if finished:
                await memory.put(str(number), "a", "1")
        known = [(await memory.get(str(number), "a")).state for number in range(5)]
        assert known == (["unknown", "unknown", "done", "done", "done"] if finished else ["pending"] * 5)

    asyncio.run(check())
