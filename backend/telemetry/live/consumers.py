"""The browser's socket: subscribes to jobs and is nudged when they have news.

    in:  {"watch": "job_…"}   {"unwatch": "job_…"}   {"watch_team": true}
    out: {"job": "job_…", "cursor": 812}   pull everything after your cursor
         {"pull": true}                    news may be missed: pull everything that you watch
         {"beat": 0.8}                     no other news: everything committed up to 0.8 s ago was announced
         {"error": "not_found", "job": "job_…"}

Invariants:
- the right to watch is checked in the database at every subscription, every 30 s, and at once when the session, the
  user or a membership changes, again if that happens during a look-up; no frame is sent between the notice of such a
  change and the check;
- another team's job is answered like one that does not exist;
- sockets and look-ups are limited per team, however many people and sessions it has;
- a slow reader costs memory for one cursor per job, and delays no other reader.
"""

import asyncio
import json
import logging
from contextlib import AsyncExitStack, suppress
from typing import Any

from channels.auth import get_user
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.backends.db import SessionStore
from django.db import DatabaseError, InterfaceError

from backend.accounts.models import User
from backend.accounts.selectors import teams_of
from backend.accounts.sessions.following import is_live
from backend.api.limits.places import Limits, Places
from backend.api.limits.rate_limit import may_look_up
from backend.errors import Refusal
from backend.jobs.models import Job
from backend.jobs.selectors import job_visible_to
from backend.telemetry.live.hub import Inbox, hub, session_notice, user_notice
from backend.telemetry.selectors import current_cursor

log = logging.getLogger(__name__)

RECHECK_EVERY_S = 30.0
PAUSE_BETWEEN_FRAMES_S = 0.05  # news in between is sent in one frame
PAUSE_A_SOCKET_S = 0.00012  # about the cost of a frame: very many sockets are served less often, but none late
BEAT_EVERY_S = 1.5
SILENT_AFTER_S = 4.0
MOST_WATCHED = 50
# Measured with a thousand per process. Three teams at their limit leave room for a fourth.
MOST_OF_A_TEAM, MOST_IN_A_PROCESS = 250, 1_000
MOST_CHARS = 1_000
CLOSE_BAD_FRAME, CLOSE_NOT_ALLOWED, CLOSE_TRY_LATER = 4400, 4403, 1013


open_sockets = Places(lambda: Limits(of_a_team=MOST_OF_A_TEAM, of_a_process=MOST_IN_A_PROCESS))


class LiveConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # channels ships no types
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._session_key: str = scope["session"].session_key or ""
        self._inbox = Inbox(user=user_notice(scope["user"].pk), session=session_notice(self._session_key))
        async with AsyncExitStack() as self._open:  # whatever a handler raises, the socket leaves the hub
            await super().__call__(scope, receive, send)

    async def connect(self) -> None:
        if not self.scope["user"].is_authenticated:
            await self.close()  # before accept: the handshake gets a 403
            return
        try:
            self._counted = await _teams(self.scope["user"]) or frozenset({self.scope["user"].public_id})
            self._open.callback(open_sockets.take(self._counted))
        except Refusal:
            await self.close()
            return
        await self.accept()
        await self._open.enter_async_context(hub().joined(self._inbox))
        delivering = asyncio.create_task(self._deliver())
        self._open.callback(delivering.cancel)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        match _parse(text_data):
            case {"watch": str(job_id)}:
                if await self._may_look_up():
                    await self._watch(job_id)
            case {"unwatch": str(job_id)}:
                self._inbox.jobs.pop(job_id, None)
            case {"watch_team": bool(wanted)}:
                if await self._may_look_up():
                    await self._watch_teams(wanted)
            case _:
                await self.close(CLOSE_BAD_FRAME)

    async def _may_look_up(self) -> bool:
        """Counted by team. A client over the limit is disconnected, and reconnects later by itself."""
        allowed: bool = await database_sync_to_async(may_look_up)(self._counted)
        if not allowed:
            await self.close(CLOSE_TRY_LATER)
        return allowed

    async def _watch_teams(self, wanted: bool) -> None:
        num_notices = self._inbox.num_notices
        self._inbox.teams = await _teams(self.scope["user"]) if wanted else frozenset()
        self._recheck_since(num_notices)
        self._inbox.miss()

    def _recheck_since(self, num_notices: int) -> None:
        """The check of a notice during a look-up did not see the new subscription, and the look-up not the change."""
        if self._inbox.num_notices != num_notices:
            self._inbox.recheck()

    async def _watch(self, job_id: str) -> None:
        num_notices = self._inbox.num_notices
        job = await _visible_job(self.scope["user"], job_id)
        if job is None or len(self._inbox.jobs) >= MOST_WATCHED:
            await self._send({"error": "not_found" if job is None else "too_many", "job": job_id[:40]})
            return
        team = self._inbox.jobs[job_id] = job.team_id
        self._recheck_since(num_notices)
        # Reads the cursor after subscribing: earlier notifications had no receiver.
        self._inbox.offer(team, job_id, await _cursor(job))

    async def _deliver(self) -> None:
        try:
            while await self._is_still_allowed():
                await self._send_until_recheck()
            await self.close(CLOSE_NOT_ALLOWED)
        except OSError:  # the browser disconnected during a send; `disconnect` follows
            return
        except (DatabaseError, InterfaceError) as error:
            log.warning("live socket closed, cannot check its rights: %s", str(error).strip())
            await self.close(CLOSE_TRY_LATER)

    async def _send_until_recheck(self) -> None:
        recheck = asyncio.get_running_loop().call_later(RECHECK_EVERY_S, self._inbox.recheck)
        try:
            while True:
                if not await self._has_news():
                    await self._send({"beat": round(hub().silent_s, 2)})
                    continue
                if not await self._send_news():
                    return
                await asyncio.sleep(max(PAUSE_BETWEEN_FRAMES_S, hub().num_sockets * PAUSE_A_SOCKET_S))
        finally:
            recheck.cancel()

    async def _send_news(self) -> bool:
        """False: a notice has come, and nothing is sent before the check. What is left of a taken batch becomes one
        pull."""
        taken = [] if self._inbox.must_recheck else self._inbox.take()
        for text in taken:
            if self._inbox.must_recheck:
                self._inbox.miss()
                return False
            await self.send(text_data=text)
        return not self._inbox.must_recheck

    async def _has_news(self) -> bool:
        """Waits for news. False: time for a beat; none is sent while the hub itself is silent, so silence shows."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._inbox.wait(), BEAT_EVERY_S)
                return True
            if hub().silent_s < SILENT_AFTER_S:
                return False

    async def _is_still_allowed(self) -> bool:
        self._inbox.must_recheck = False  # reset first: a later notice is a reason for another check
        user: User | AnonymousUser = await get_user({"session": SessionStore(self._session_key)})
        if isinstance(user, AnonymousUser) or not user.is_authenticated:
            return False
        if not await database_sync_to_async(is_live)(self._session_key):
            return False
        teams = await _teams(user)
        return self._inbox.teams <= teams and teams.issuperset(self._inbox.jobs.values())

    async def _send(self, frame: dict[str, Any]) -> None:
        await self.send(text_data=json.dumps(frame))


def _parse(text: str | None) -> object:
    if text is None or len(text) > MOST_CHARS:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


async def _visible_job(user: User, job_id: str) -> Job | None:
    job: Job | None = await database_sync_to_async(job_visible_to)(user, job_id)
    return job


async def _cursor(job: Job) -> int:
    cursor: int = await database_sync_to_async(current_cursor)(job)
    return cursor


async def _teams(user: User) -> frozenset[str]:
    teams: frozenset[str] = await database_sync_to_async(lambda: frozenset(team.pk for team in teams_of(user)))()
    return teams
