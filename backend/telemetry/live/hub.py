"""One listener per web process: Postgres' NOTIFYs in, nudges to this process' sockets out.

    NOTIFY "team job cursor" ──▶ Hub ──▶ Inbox (newest cursor of each job) ──▶ its socket, at its own pace

Invariants:
- a nudge only means "there is more, up to 812"; a missed nudge is covered by the next one;
- an inbox is bounded: only the newest cursor of each job is kept, and overflow becomes one "pull everything";
- whenever listening starts, also after a lost connection, every socket is sent "pull everything".
"""

import asyncio
import hashlib
import json
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import psycopg

from backend.jobs.lifecycle import LIVE_CHANNEL
from backend.outside.database import direct_parameters
from backend.outside.trust import trouble_with_certificate

log = logging.getLogger(__name__)

AUTH_CHANNEL = "laminar_auth"
PING_EVERY_S = 1.5
PING_PATIENCE_S = 3.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 1.0
MOST_JOBS_WAITING = 200

Connect = Callable[[], Awaitable[psycopg.AsyncConnection[Any]]]


PULL_EVERYTHING = json.dumps({"pull": True})


@lru_cache(maxsize=256)
def _nudge(job: str, cursor: int) -> str:
    """Cached: a thousand sockets get the same frame."""
    return json.dumps({"job": job, "cursor": cursor})


class Inbox:
    """Pending nudges of one socket."""

    def __init__(self, *, user: str, session: str) -> None:
        self.user, self.session = user, session
        self.jobs: dict[str, str] = {}
        """Watched job → its team."""
        self.teams: frozenset[str] = frozenset()
        """Teams whose jobs are all watched."""
        self.must_recheck = False
        self._answer: str | None = None
        self._news: dict[str, int] = {}
        self._pull_everything = False
        self._woken = asyncio.Event()

    def offer(self, team: str, job: str, cursor: int) -> None:
        if job not in self.jobs and team not in self.teams:
            return
        if job not in self._news and len(self._news) >= MOST_JOBS_WAITING:
            self.miss()
        else:
            self._news[job] = max(cursor, self._news.get(job, 0))
            self._woken.set()

    def miss(self) -> None:
        self._news.clear()
        self._pull_everything = True
        self._woken.set()

    def recheck(self) -> None:
        self.must_recheck = True
        self._woken.set()

    def answer(self, text: str) -> None:
        """The response to the reader's newest pull. It replaces an earlier one that was not sent yet."""
        self._answer = text
        self._woken.set()

    async def wait(self) -> None:
        """Waits until there is something to send or to check."""
        await self._woken.wait()

    def take(self) -> list[str]:
        """The frames to send."""
        self._woken.clear()
        frames = [self._answer] if self._answer is not None else []
        frames += [PULL_EVERYTHING] if self._pull_everything else []
        frames += [_nudge(job, cursor) for job, cursor in self._news.items()]
        self._answer, self._pull_everything = None, False
        self._news.clear()
        return frames


class Hub:
    """The listener of a process; it listens while there is any inbox."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._inboxes: set[Inbox] = set()
        self._listening: asyncio.Task[None] | None = None
        self._current_at = -math.inf
        self.num_changes = 0
        """Rises with every change of rights, of whomever, and when changes may have been missed: rights that were read
        before a rise may be outdated."""

    @property
    def num_sockets(self) -> int:
        return len(self._inboxes)

    @property
    def silent_s(self) -> float:
        """Everything committed longer ago than this was offered to every inbox."""
        return asyncio.get_running_loop().time() - self._current_at

    @asynccontextmanager
    async def joined(self, inbox: Inbox) -> AsyncIterator[None]:
        self._inboxes.add(inbox)
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen_forever(), name="live-hub")
        elif inbox.teams or inbox.jobs:
            inbox.miss()
        try:
            yield
        finally:
            self._inboxes.discard(inbox)
            if not self._inboxes and self._listening is not None:
                self._listening.cancel()
                self._listening = None

    async def _listen_forever(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                async with await self._connect() as db:
                    await db.execute(f"LISTEN {LIVE_CHANNEL}; LISTEN {AUTH_CHANNEL}")
                    pause_s = FIRST_PAUSE_S
                    self._current_at = asyncio.get_running_loop().time()
                    self.num_changes += 1
                    for inbox in self._inboxes:
                        inbox.miss()
                        inbox.recheck()
                    await self._listen(db)
            except (psycopg.Error, OSError, TimeoutError) as error:
                trouble = trouble_with_certificate(error, "LAMINAR_DATABASE_DIRECT_URL or LAMINAR_DATABASE_URL")
                log.warning("live hub lost Postgres, retry in %.1f s: %s", pause_s, trouble or str(error).strip())
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _listen(self, db: psycopg.AsyncConnection[Any]) -> None:
        while True:
            async for notice in db.notifies(timeout=PING_EVERY_S):
                self._dispatch(notice.channel, notice.payload)
            pinged_at = asyncio.get_running_loop().time()
            await asyncio.wait_for(db.execute("SELECT 1"), PING_PATIENCE_S)  # a dead connection looks like a quiet one
            # Dispatch notices that came with the answer first: only then is everything up to here offered.
            async for notice in db.notifies(timeout=0):
                self._dispatch(notice.channel, notice.payload)
            self._current_at = pinged_at

    def _dispatch(self, channel: str, payload: str) -> None:
        if channel == AUTH_CHANNEL:
            self.num_changes += 1
            for inbox in self._inboxes:
                if payload in {inbox.user, inbox.session}:
                    inbox.recheck()
            return
        team, job, cursor = payload.split(" ")
        for inbox in self._inboxes:
            inbox.offer(team, job, int(cursor))


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


def hub() -> Hub:
    """This process' hub: one event loop, one hub."""
    return _hubs.setdefault(asyncio.get_running_loop(), Hub(_connect))


def user_notice(user_id: object) -> str:
    return f"user {user_id}"


def session_notice(session_key: str) -> str:
    """A session's key grants access, so only its hash is sent through the database."""
    return f"session {hashlib.sha256(session_key.encode()).hexdigest()}"


async def _connect() -> psycopg.AsyncConnection[Any]:
    """A direct connection, outside the pool and any pooler: it is held for as long as there are sockets."""
    return await psycopg.AsyncConnection.connect(
        **direct_parameters()
        | {
            "autocommit": True,
            "connect_timeout": 5,
            "application_name": "laminar-live-hub",
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 15_000,
        }
    )
