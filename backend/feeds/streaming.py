"""One Server-Sent Events stream: replay what was missed, then tell what comes, for as long as the key is good.

    hub (NOTIFY) ──"there is more"──▶ Inbox ──▶ pull rows from Postgres ──▶ frames ──▶ client

Invariants:
- a nudge only says that it is worth looking: what is told was read from Postgres, so a lost nudge costs a delay;
- the key is judged again every `RECHECK_EVERY_S`, and at once when its owner's rights changed: nothing is told between
  that notice and the answer;
- between two looks the stream holds no connection of the pool and no thread: all of a process' streams share
  `READERS`, so it may hold as many as it has memory for;
- something is sent every `HEARTBEAT_S`, so that a dead client and a dead server are both noticed.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from django.db import DatabaseError, InterfaceError, connection

from backend.telemetry.hub import Inbox, hub

HEARTBEAT_S = 15.0
RECHECK_EVERY_S = 30.0
LASTS_S = 3_600.0  # then the client comes back with Last-Event-ID, maybe to a server that has more room
RETRY_MS = 2_000
READERS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="feed")  # a third of the process' connections
_STILL_HERE = b": still here\n\n"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """An answer of a source. `frames` to send now; `again`: there may be more; `is_over`: nothing will ever follow."""

    frames: Sequence[bytes]
    again: bool = False
    is_over: bool = False


class Source(Protocol):
    """A reader of what is new since it was last asked, as frames in its own words."""

    def pull(self, news: Sequence[Mapping[str, Any]]) -> Pulled: ...


def mark(id: str) -> bytes:
    """Moves the client's Last-Event-ID on and tells nothing."""
    return f"id: {id}\n\n".encode()


def frame(event: str, data: object, *, id: str = "") -> bytes:
    head = f"id: {id}\n" if id else ""
    return f"{head}event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


async def stream(source: Source, inbox: Inbox, *, is_allowed: Callable[[], bool]) -> AsyncIterator[bytes]:
    async with hub().joined(inbox):
        yield f"retry: {RETRY_MS}\n\n".encode()
        try:
            async for some in _tell(source, inbox, is_allowed):
                yield some
        except (DatabaseError, InterfaceError):
            yield b": the database is away, come back in a moment\n\n"


async def _tell(source: Source, inbox: Inbox, is_allowed: Callable[[], bool]) -> AsyncIterator[bytes]:
    clock = asyncio.get_running_loop().time
    began = told_at = clock()
    recheck_at = began + RECHECK_EVERY_S
    while clock() < began + LASTS_S:
        if inbox.must_recheck or clock() >= recheck_at:
            inbox.must_recheck = False  # first: a notice that comes from here on is another reason to ask
            if not await _apart(is_allowed):
                yield frame("goodbye", {"code": "unauthenticated"})
                return
            recheck_at = clock() + RECHECK_EVERY_S
        pulled = await _apart(source.pull, [json.loads(text) for text in inbox.take()])
        if inbox.must_recheck and not await _apart(is_allowed):
            continue  # asked again at the top, which says goodbye
        for one in pulled.frames:
            yield one
            told_at = clock()
        if pulled.is_over:
            return
        if pulled.again:
            continue
        with suppress(TimeoutError):
            await asyncio.wait_for(inbox.wait(), max(0.0, min(told_at + HEARTBEAT_S, recheck_at) - clock()))
        if clock() >= told_at + HEARTBEAT_S:
            yield _STILL_HERE
            told_at = clock()


async def _apart(function: Callable[..., T], *arguments: Any) -> T:
    """In a thread that streams share, whose connection then goes back to the pool."""

    def run() -> T:
        try:
            return function(*arguments)
        finally:
            connection.close()

    return await asyncio.get_running_loop().run_in_executor(READERS, run)
