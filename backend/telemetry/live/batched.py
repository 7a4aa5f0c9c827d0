"""Reads of many sockets, together: one call answers everyone who came while the previous one ran.

    sockets ──key──▶ wanted keys ──a few calls at a time, in threads──▶ database ──▶ the value of each key

Invariants:
- a call begins after every request that it answers, so no value is older than its request;
- a key is read by one call at a time, and again `PAUSE_S` after it at the earliest, however many sockets want it;
- a socket that disconnects while it waits does not disturb the others; a failed call fails those who waited for it,
  and no one else.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from channels.db import DatabaseSyncToAsync

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

PAUSE_S: Final = 0.02


class Batched(Generic[K, V]):
    """Await it with a key. Belongs to one event loop."""

    def __init__(
        self, call: Callable[[Sequence[K]], Mapping[K, V]], threads: Executor, *, most_keys: int, most_calls: int
    ) -> None:
        self._call = DatabaseSyncToAsync(call, thread_sensitive=False, executor=threads)
        self._most_keys, self._most_calls = most_keys, most_calls
        self._wanted: dict[K, asyncio.Future[V | None]] = {}
        self._busy: set[K] = set()
        self._calls: set[asyncio.Task[Any] | None] = set()

    async def __call__(self, key: K) -> V | None:
        """None: the call has no value for this key. Raises what the call raises."""
        answer = self._wanted.get(key)
        if answer is None:
            answer = self._wanted[key] = asyncio.get_running_loop().create_future()
            answer.add_done_callback(_look_at_failure)
            self._begin_calls()
        return await asyncio.shield(answer)

    def _begin_calls(self) -> None:
        while len(self._calls) < self._most_calls:
            keys = tuple(islice((key for key in self._wanted if key not in self._busy), self._most_keys))
            if not keys:
                return
            call = asyncio.create_task(self._read({key: self._wanted.pop(key) for key in keys}))
            self._busy.update(keys)
            self._calls.add(call)

    async def _read(self, batch: Mapping[K, "asyncio.Future[V | None]"]) -> None:
        try:
            found = await self._call(tuple(batch))
        except Exception as error:  # noqa: BLE001  # passed to everyone who waits
            for answer in batch.values():
                answer.set_exception(error)
        else:
            for key, answer in batch.items():
                answer.set_result(found.get(key))
        # Not in a callback of the task: uvloop may run a late timer before it, and the last key would never be read.
        self._calls.discard(asyncio.current_task())
        self._begin_calls()
        asyncio.get_running_loop().call_later(PAUSE_S, self._end_pause, tuple(batch))

    def _end_pause(self, keys: Iterable[K]) -> None:
        self._busy.difference_update(keys)
        self._begin_calls()


def _look_at_failure(answer: "asyncio.Future[V | None]") -> None:
    """Else asyncio reports a failure that everyone has left."""
    if not answer.cancelled():
        answer.exception()
