"""The browser's socket: subscribes to jobs, is nudged when they have news, and answers a page's pull.

    in:  {"watch": "job_…"}   {"unwatch": "job_…"}   {"watch_team": true}
         {"pull": "job_…", "after": 811}             of a watched job, everything after a cursor
    out: {"job": "job_…", "cursor": 812}             the job has news: pull everything after your cursor
         {"job": "job_…", "after": 811, "news": {…}} the answer to a pull, as over HTTP
         {"pull": true}                              news may be missed: pull everything that you watch
         {"beat": 0.8}                               no other news: all that was committed 0.8 s ago was announced
         {"job": "job_…", "error": "not_found"}      or too_many (watched), too_often (pulled), unavailable (database)

A page pulls over its socket: the socket's rights are known, and pages that want the same are answered together, for a
tenth of what a request costs (decisions.md).

Invariants:
- the rights are read from the database when the socket opens, every 30 s, and at once when the session, the user or a
  membership changes; no frame of a job is sent between the notice of such a change and the check;
- another team's job is answered like one that does not exist;
- sockets and look-ups are limited per team, however many people and sessions it has; pulls per user, as over HTTP;
- a slow reader costs memory for one cursor per job and one answer, and delays no other reader.
"""

import asyncio
import json
import logging
from contextlib import AsyncExitStack, suppress
from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.http.cookie import parse_cookie

from backend.accounts.sessions.pace import PAGES_A_MINUTE, Pace, pace
from backend.accounts.sessions.rights import SessionRights
from backend.api.limits import rate_limit
from backend.api.limits.places import Limits, Places
from backend.errors import Refusal
from backend.telemetry.live.hub import Inbox, hub, session_notice, user_notice
from backend.telemetry.live.reads import reads

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
LARGEST_CURSOR = 2**63 - 1
CLOSE_BAD_FRAME, CLOSE_NOT_ALLOWED, CLOSE_TRY_LATER = 4400, 4403, 1013


NO_DATABASE = (DatabaseError, InterfaceError)

open_sockets = Places(lambda: Limits(of_a_team=MOST_OF_A_TEAM, of_a_process=MOST_IN_A_PROCESS))
look_ups = Pace()


class LiveConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # channels ships no types
    _rights: SessionRights
    _inbox: Inbox

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with AsyncExitStack() as self._open:  # whatever a handler raises, the socket leaves the hub
            await super().__call__(scope, receive, send)

    async def connect(self) -> None:
        self._session_key = _session_key(self.scope)
        num_changes = hub().num_changes
        if not await self._may_open():
            await self.close()  # before accept: the handshake gets a 403
            return
        await self.accept()
        self._inbox = Inbox(user=user_notice(self._rights.user_id), session=session_notice(self._session_key))
        await self._open.enter_async_context(hub().joined(self._inbox))
        if hub().num_changes != num_changes:
            self._inbox.recheck()
        delivering = asyncio.create_task(self._deliver())
        self._open.callback(delivering.cancel)

    async def _may_open(self) -> bool:
        try:
            rights = await reads().rights(self._session_key) if self._session_key else None
            if rights is None:
                return False
            self._rights = rights
            self._counted = rights.teams or frozenset({rights.public_id})
            self._open.callback(open_sockets.take(self._counted))
        except Refusal:
            return False
        except NO_DATABASE as error:
            log.warning("live socket refused, cannot read its rights: %s", str(error).strip())
            return False
        return True

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        match _parse(text_data):
            case {"watch": str(job_id)}:
                if await self._may_look_up():
                    await self._watch(job_id)
            case {"unwatch": str(job_id)}:
                self._inbox.jobs.pop(job_id, None)
            case {"watch_team": bool(wanted)}:
                if await self._may_look_up():
                    self._inbox.teams = self._rights.teams if wanted else frozenset()
                    self._inbox.miss()
            case {"pull": str(job_id), "after": int(after)} if type(after) is int and 0 <= after <= LARGEST_CURSOR:
                await self._pull(job_id, after)
            case _:
                await self.close(CLOSE_BAD_FRAME)

    async def _may_look_up(self) -> bool:
        """Counted by team, in this process. A client over the limit is disconnected, and reconnects later by itself."""
        rate = rate_limit.LOOK_UPS
        most = max(1.0, rate.limit * settings.ENVIRONMENT.rate_scale)
        for team in sorted(self._counted):
            if look_ups.wait_s(team, most=most, window_s=rate.window_s):
                await self.close(CLOSE_TRY_LATER)
                return False
        return True

    async def _watch(self, job_id: str) -> None:
        try:
            job = await reads().jobs(job_id)
            if job is None or job.team_id not in self._rights.teams:
                await self._refuse(job_id, "not_found")
                return
            if len(self._inbox.jobs) >= MOST_WATCHED:
                await self._refuse(job_id, "too_many")
                return
            # A check of rights that runs or comes includes this subscription, and no frame is sent before its end.
            self._inbox.jobs[job_id] = job.team_id
            # Reads the cursor after subscribing: earlier notifications had no receiver.
            current = await reads().jobs(job_id)
            self._inbox.offer(job.team_id, job_id, current.cursor if current else job.cursor)
        except NO_DATABASE as error:  # the page subscribes again with its next socket
            log.warning("live socket closed, cannot look up a job: %s", str(error).strip())
            await self.close(CLOSE_TRY_LATER)

    async def _pull(self, job_id: str, after: int) -> None:
        if job_id not in self._inbox.jobs:
            await self._refuse(job_id, "not_found")
            return
        most = max(1.0, PAGES_A_MINUTE * settings.ENVIRONMENT.rate_scale)
        if pace.wait_s(self._rights.user_id, most=most):
            await self._refuse(job_id, "too_often")
            return
        try:
            news = await reads().news((job_id, after))
        except NO_DATABASE as error:
            log.warning("live socket cannot read news: %s", str(error).strip())
            await self._refuse(job_id, "unavailable")
            return
        if news is None:
            await self._refuse(job_id, "not_found")
        else:
            self._inbox.answer(f'{{"job": "{job_id}", "after": {after}, "news": {news}}}')

    async def _refuse(self, job_id: str, error: str) -> None:
        await self._send({"error": error, "job": job_id[:40]})

    async def _deliver(self) -> None:
        try:
            while True:
                await self._send_until_recheck()
                if not await self._is_still_allowed():
                    await self.close(CLOSE_NOT_ALLOWED)
                    return
        except OSError:  # the browser disconnected during a send; `disconnect` follows
            return
        except NO_DATABASE as error:
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
        rights = await reads().rights(self._session_key)
        if rights is None:
            return False
        self._rights = rights
        return self._inbox.teams <= rights.teams and rights.teams.issuperset(self._inbox.jobs.values())

    async def _send(self, frame: dict[str, Any]) -> None:
        await self.send(text_data=json.dumps(frame))


def _parse(text: str | None) -> object:
    if text is None or len(text) > MOST_CHARS:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _session_key(scope: Any) -> str:
    cookies = [value.decode("latin1") for name, value in scope["headers"] if name == b"cookie"]
    return parse_cookie("; ".join(cookies)).get(settings.SESSION_COOKIE_NAME, "")
