"""Reads that many sockets share: what each waits for, and what it gets."""

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvloop

from backend.telemetry.live import batched
from backend.telemetry.live.batched import Batched


class Database:
    """Answers each key with the number of the call, when it is let."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.begun, self.may_answer = threading.Semaphore(0), threading.Semaphore(0)

    def read(self, keys: Sequence[str]) -> dict[str, int]:
        self.calls.append(tuple(keys))
        number = len(self.calls)
        self.begun.release()
        assert self.may_answer.acquire(timeout=60)
        if "broken" in keys:
            raise ValueError("broken")
        return {key: number for key in keys if key != "unknown"}

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.acquire, timeout=60)


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setattr(batched, "PAUSE_S", 0.0)
    return Database()


def batches(database: Database, **bounds: int) -> Batched[str, int]:
    return Batched(database.read, ThreadPoolExecutor(4), **({"most_keys": 100, "most_calls": 1} | bounds))


async def ask(reads: Batched[str, int], *keys: str) -> list[Any]:
    """One waiting socket for each key."""
    waiting = [asyncio.create_task(reads(key)) for key in keys]
    await asyncio.sleep(0)
    return waiting


def test_who_comes_during_a_call_is_answered_by_a_later_one(database: Database) -> None:
    async def live() -> None:
        reads = batches(database)
        first = await ask(reads, "a")
        await database.has_begun()
        later = await ask(reads, "a", "b", "a", "unknown")
        for _ in range(3):
            database.may_answer.release()
        assert await asyncio.gather(*first) == [1]
        a, b, again, unknown = await asyncio.gather(*later)
        assert a == again >= 2 and b >= 2 and unknown is None

    asyncio.run(live())
    assert sorted(key for call in database.calls for key in call) == ["a", "a", "b", "unknown"]


def test_keys_are_read_in_parallel_but_none_twice_at_a_time(database: Database) -> None:
    async def live() -> None:
        reads = batches(database, most_keys=1, most_calls=2)
        waiting = await ask(reads, "a", "b", "c")
        await database.has_begun()
        waiting += await ask(reads, "a")
        await database.has_begun()
        assert sorted(database.calls) == [("a",), ("b",)], "the third waits for a place, and a again for its own end"
        for _ in range(4):
            database.may_answer.release()
        await asyncio.gather(*waiting)

    asyncio.run(live())
    assert sorted(database.calls) == [("a",), ("a",), ("b",), ("c",)]


def test_large_batch_is_split(database: Database) -> None:
    async def live() -> None:
        for _ in range(3):
            database.may_answer.release()
        await asyncio.gather(*await ask(batches(database, most_keys=2), "a", "b", "c", "d"))

    asyncio.run(live())
    assert database.calls == [("a",), ("b", "c"), ("d",)]


def test_failed_call_fails_only_those_who_waited_for_it(database: Database) -> None:
    async def live() -> None:
        reads = batches(database)
        broken = await ask(reads, "broken")
        await database.has_begun()
        later = await ask(reads, "a")
        for _ in range(2):
            database.may_answer.release()
        assert isinstance((await asyncio.gather(*broken, return_exceptions=True))[0], ValueError)
        assert await asyncio.gather(*later) == [2]

    asyncio.run(live())


def test_socket_that_leaves_does_not_disturb_the_others(database: Database) -> None:
    async def live() -> None:
        reads = batches(database)
        _, leaves, stays = await ask(reads, "first", "a", "a")
        leaves.cancel()
        for _ in range(2):
            database.may_answer.release()
        assert await stays == 2

    asyncio.run(live())


def test_no_key_is_lost_on_a_busy_loop_with_late_timers(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop runs late timers before callbacks that are due: a pause may end before its call counts as ended."""
    monkeypatch.setattr(batched, "PAUSE_S", 0.002)

    async def stay_busy() -> None:
        while True:
            time.sleep(0.003)  # the loop itself is what is busy
            await asyncio.sleep(0)

    async def live() -> None:
        for _ in range(100):
            database.may_answer.release()
        reads = batches(database)
        busy = asyncio.create_task(stay_busy())
        for _ in range(30):
            wishes = []
            for _ in range(3):
                wishes += await ask(reads, "a")
            await asyncio.wait_for(asyncio.gather(*wishes), 60)
        busy.cancel()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(live())
