"""Subscribing: news during the look-up of the job is not missed."""

import asyncio
import threading
from typing import Any

import pytest
from channels.db import database_sync_to_async
from django.db import transaction

from backend.accounts.models import User
from backend.jobs.lifecycle import locked_job, next_cursor
from backend.jobs.models import Job
from backend.telemetry.live import consumers
from backend.telemetry.live.hub import Hub


def move(job: Job) -> int:
    with transaction.atomic():
        return next_cursor(locked_job(job.pk))


def test_news_during_subscription_is_not_missed(
    watch: Any, alice: User, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    visible_job, dispatched, offered = consumers._visible_job, Hub._dispatch, threading.Event()

    def dispatch(hub: Hub, channel: str, payload: str) -> None:
        dispatched(hub, channel, payload)
        offered.set()

    async def look_up(user: User, job_id: str) -> Job | None:
        job = await visible_job(user, job_id)
        offered.clear()
        await database_sync_to_async(move)(job)
        assert await asyncio.to_thread(offered.wait, 10)
        return job

    watch(alice).settle()  # the hub is listening
    monkeypatch.setattr(Hub, "_dispatch", dispatch)
    monkeypatch.setattr(consumers, "_visible_job", look_up)
    before = job.cursor
    frames = watch(alice, {"watch": job.pk}).hear_until(lambda frame: "job" in frame)
    assert frames[-1]["cursor"] == before + 1
