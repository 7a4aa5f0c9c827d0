"""A real uvicorn with the whole application, and browsers that watch jobs through its socket.

Silence is proved by a marker: a NOTIFY on the hub's channel that every socket receives. Whatever was committed before
the marker and concerns a socket reaches that socket before the marker does.
"""

import itertools
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from backend.accounts.models import User
from backend.jobs.lifecycle import LIVE_CHANNEL
from backend.jobs.selectors import WatchedJob
from backend.telemetry.live import consumers
from backend.telemetry.live.hub import Inbox
from backend.telemetry.live.reads import reads
from tests.uvicorn_server import run_uvicorn
from tests.waiting import eventually

ORIGIN = "http://127.0.0.1:8000"
MARKER = "job_marker"
UNKNOWN = "job_of_nobody"
WITHIN_S = 60.0


@pytest.fixture
def server(settings: Any, transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from backend.asgi import application

    monkeypatch.setattr(Inbox, "offer", _offer_markers_too)
    assert settings.CSRF_TRUSTED_ORIGINS == [ORIGIN]
    with run_uvicorn(application, ws="websockets-sansio") as url:
        yield f"{url.replace('http', 'ws', 1)}/ws/live"


class Watcher:
    """A signed-in browser."""

    def __init__(self, url: str, user: User | None, open_until: ExitStack, *, origin: str | None = ORIGIN) -> None:
        self.http = Client()
        headers = {}
        if user is not None:
            self.http.force_login(user)
            headers["Cookie"] = f"sessionid={self.http.cookies['sessionid'].value}"
        opening = connect(url, origin=origin, additional_headers=headers, open_timeout=None)  # type: ignore[arg-type]
        self.socket: ClientConnection = open_until.enter_context(opening)

    def say(self, frame: object) -> None:
        self.socket.send(json.dumps(frame))

    def hear(self) -> dict[str, Any]:
        """The next frame that is not a heartbeat."""
        while "beat" in (frame := json.loads(self.socket.recv(timeout=WITHIN_S))):
            pass
        message: dict[str, Any] = frame
        return message

    def hear_until(self, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        frames = [self.hear()]
        while not wanted(frames[-1]):
            frames.append(self.hear())
        return frames

    def hears_nothing(self) -> bool:
        return not self._hear_until_marker()

    def _hear_until_marker(self) -> list[dict[str, Any]]:
        cursor = next(_markers)
        with connection.cursor() as db:
            db.execute("SELECT pg_notify(%s, %s)", [LIVE_CHANNEL, f"team_marker {MARKER} {cursor}"])
        frames = self.hear_until(lambda frame: frame == {"job": MARKER, "cursor": cursor})
        return [frame for frame in frames if frame.get("job") != MARKER]

    def closed_with(self) -> tuple[int, list[dict[str, Any]]]:
        """The close code, and the frames before it, without the markers of other browsers."""
        frames = []
        try:
            while True:
                frame = self.hear()
                frames += [frame] if frame.get("job") != MARKER else []
        except ConnectionClosed as closed:
            assert closed.rcvd is not None
            return closed.rcvd.code, frames

    def settle(self) -> None:
        """Waits until the hub listens, this browser's commands are executed, and no frame is in transit."""
        eventually(hub_listens, "the hub listens")
        self.say({"watch": UNKNOWN})
        self.hear_until(lambda frame: frame.get("job") == UNKNOWN)
        self._hear_until_marker()


_markers = itertools.count(1)
_offer = Inbox.offer


def _offer_markers_too(inbox: Inbox, team: str, job: str, cursor: int) -> None:
    if job == MARKER:
        inbox.jobs[MARKER] = team
        inbox._news.pop(MARKER, None)  # an older one that still waits would lend it its place in front
    _offer(inbox, team, job, cursor)
    inbox.jobs.pop(MARKER, None)  # access to this one is never checked


def hub_listens() -> bool:
    """As Postgres sees it; when it starts, every socket gets a pull."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name = 'laminar-live-hub' AND state = 'idle' AND query <> ''"
        )
        return bool(cursor.fetchone()[0])


@pytest.fixture
def watch(server: str) -> Iterator[Callable[..., Watcher]]:
    with ExitStack() as until_the_end:

        def open_socket(user: User | None, *frames: object, path: str = "", **options: Any) -> Watcher:
            watcher = Watcher(server + path, user, until_the_end, **options)
            for frame in frames:
                watcher.say(frame)
            return watcher

        yield open_socket


def after_look_up(monkeypatch: pytest.MonkeyPatch, happens: Callable[[str], Awaitable[None]]) -> None:
    """Once, after the query of the next job to watch, and before its result is used."""
    is_due = [True]

    class Delayed:
        def __init__(self) -> None:
            self.rights, self.news = reads().rights, reads().news

        async def jobs(self, job_id: str) -> WatchedJob | None:
            found = await reads().jobs(job_id)
            if is_due:
                is_due.clear()
                await happens(job_id)
            return found

    monkeypatch.setattr(consumers, "reads", Delayed)
