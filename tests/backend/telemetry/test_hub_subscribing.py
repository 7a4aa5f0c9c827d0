"""Subscribing: news during the look-up of the job is not missed."""

import asyncio
import threading
from typing import Any

import pytest
from channels.db import database_sync_to_async
from django.db import OperationalError, transaction

from backend.accounts.models import User
from backend.jobs.lifecycle import locked_job, next_cursor
from backend.jobs.models import Job
from backend.telemetry.live import consumers
from backend.telemetry.live.hub import Hub
from tests.backend.browser_sockets import after_look_up


def move(job: Job) -> int:
    with transaction.atomic():
        return next_cursor(locked_job(job.pk))


def test_news_during_subscription_is_not_missed(
    watch: Any, alice: User, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched, offered = Hub._dispatch, threading.Event()

    def dispatch(hub: Hub, channel: str, payload: str) -> None:
        dispatched(hub, channel, payload)
        offered.set()

    async def move_first(job_id: str) -> None:
        offered.clear()
        await database_sync_to_async(move)(job)
        assert await asyncio.to_thread(offered.wait, 60)

    watch(alice).settle()  # the hub is listening
    monkeypatch.setattr(Hub, "_dispatch", dispatch)
    after_look_up(monkeypatch, move_first)
    before = job.cursor
    frames = watch(alice, {"watch": job.pk}).hear_until(lambda frame: "job" in frame)
    assert frames[-1]["cursor"] == before + 1


def test_socket_that_cannot_look_up_its_job_closes(
    watch: Any, alice: User, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page reconnects and subscribes again. An open socket without its subscription would miss all news."""

    async def fail(job_id: str) -> None:
        raise OperationalError("server closed the connection")

    watcher = watch(alice)
    watcher.settle()
    after_look_up(monkeypatch, fail)
    watcher.say({"watch": job.pk})
    assert watcher.closed_with()[0] == consumers.CLOSE_TRY_LATER
