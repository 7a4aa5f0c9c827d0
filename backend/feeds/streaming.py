"""One Server-Sent Events stream: replays missed events, then sends new ones, for as long as the key is valid.

    hub (NOTIFY) ──"there is more"──▶ Inbox ──▶ pull rows from Postgres ──▶ frames ──▶ client

Invariants:
- a nudge only triggers a pull: everything sent was read from Postgres, so a lost nudge only delays;
- the key is checked once its stream has joined the hub (a notice before that had no receiver), again every
  `RECHECK_EVERY_S`, and at once when its owner's rights change: nothing is sent between that notice and the check, also
  of what was read before;
- between two pulls a stream holds no pool connection and no thread: all streams of a process share `READERS`, so their
  number is limited by memory only;
- something is sent every `HEARTBEAT_S`, so that both ends notice a dead peer.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from django.db import DatabaseError, InterfaceError, connection

from backend.telemetry.live.hub import Inbox, hub

HEARTBEAT_S = 15.0
RECHECK_EVERY_S = 30.0
LASTS_S = 3_600.0  # then the client reconnects with Last-Event-ID, perhaps to another server
RETRY_MS = 2_000
READERS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="feed")  # a third of the process' connections
_STILL_HERE = b": still here\n\n"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """A source's answer. `frames` to send now; `again`: there may be more; `is_over`: nothing will follow."""

    frames: Sequence[bytes]
    again: bool = False
    is_over: bool = False


class Source(Protocol):
    """Reads what is new since the last pull, as frames."""

    def pull(self, news: Sequence[Mapping[str, Any]]) -> Pulled: ...


def mark(id: str) -> bytes:
    """A frame that only advances the client's Last-Event-ID."""
    return f"id: {id}\n\n".encode()


def frame(event: str, data: object, *, id: str = "") -> bytes:
    head = f"id: {id}\n" if id else ""
    return f"{head}event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


_GOODBYE: Final = frame("goodbye", {"code": "unauthenticated"})


async def stream(source: Source, inbox: Inbox, *, is_allowed: Callable[[], bool]) -> AsyncIterator[bytes]:
    async with hub().joined(inbox):
        yield f"retry: {RETRY_MS}\n\n".encode()
        try:
            async for some in _frames(source, inbox, is_allowed):
                yield some
        except (DatabaseError, InterfaceError):
            yield b": database unavailable, reconnect in a moment\n\n"


async def _frames(source: Source, inbox: Inbox, is_allowed: Callable[[], bool]) -> AsyncIterator[bytes]:
    clock = asyncio.get_running_loop().time
    began = sent_at = clock()
    recheck_at = began  # joined after its key was recognised
    while clock() < began + LASTS_S:
        if inbox.must_recheck or clock() >= recheck_at:
            if not await _is_still_allowed(inbox, is_allowed):
                yield _GOODBYE
                return
            recheck_at = clock() + RECHECK_EVERY_S
        pulled = await _in_thread(source.pull, [json.loads(text) for text in inbox.take()])
        for one_frame in pulled.frames:
            if inbox.must_recheck and not await _is_still_allowed(inbox, is_allowed):
                yield _GOODBYE
                return
            yield one_frame
            sent_at = clock()
        if pulled.is_over:
            return
        if pulled.again or inbox.must_recheck:
            continue
        with suppress(TimeoutError):
            await asyncio.wait_for(inbox.wait(), max(0.0, min(sent_at + HEARTBEAT_S, recheck_at) - clock()))
        if clock() >= sent_at + HEARTBEAT_S:
            yield _STILL_HERE
            sent_at = clock()


async def _is_still_allowed(inbox: Inbox, is_allowed: Callable[[], bool]) -> bool:
    inbox.must_recheck = False  # reset first: a later notice is a reason for another check
    return await _in_thread(is_allowed)


async def _in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Runs in a shared thread, and returns that thread's connection to the pool."""

    def run() -> T:
        try:
            return function(*arguments)
        finally:
            connection.close()

    return await asyncio.get_running_loop().run_in_executor(READERS, run)
