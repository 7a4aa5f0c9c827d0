"""Rights that end while a stream or a subscription is being opened: nothing is sent after the change."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from channels.db import database_sync_to_async

from backend.accounts.models import Membership, User
from backend.feeds import streaming
from backend.feeds.streaming import Pulled, frame
from backend.jobs.models import Job
from backend.telemetry.live import consumers
from backend.telemetry.live.hub import Hub, Inbox
from tests.backend.browser_sockets import after_look_up


class Secrets:
    """A source with two frames."""

    def pull(self, news: Sequence[Mapping[str, Any]]) -> Pulled:
        return Pulled(frames=[frame("first", {}), frame("second", {})], is_over=True)


def read(inbox: Inbox, rights: list[bool]) -> list[str]:
    """The events of a stream. `rights` are the results of its checks, in order."""

    async def collect() -> list[str]:
        frames = []
        async for piece in streaming.stream(Secrets(), inbox, is_allowed=lambda: rights.pop(0)):
            frames.append(piece.decode())
            if "first" in frames[-1]:
                inbox.recheck()  # a slow reader has not taken the second frame yet
        return [text.partition("event: ")[2].partition("\n")[0] for text in frames if "event: " in text]

    return asyncio.run(collect())


@pytest.mark.django_db(transaction=True)
def test_key_revoked_before_its_stream_joined_gets_nothing() -> None:
    """Its notice had no receiver: the key was recognised, and its inbox was not in the hub yet."""
    assert read(Inbox(user="user 1", session="key 1"), [False]) == ["goodbye"]


@pytest.mark.django_db(transaction=True)
def test_frames_read_before_a_revocation_are_not_sent() -> None:
    assert read(Inbox(user="user 1", session="key 1"), [True, False]) == ["first", "goodbye"]
    assert read(Inbox(user="user 1", session="key 1"), [True, True]) == ["first", "second"]


@pytest.mark.parametrize("check", ["ends first", "ends last"])
def test_removal_during_a_look_up_ends_the_subscription(
    watch: Any, bob: User, job: Job, monkeypatch: pytest.MonkeyPatch, check: str
) -> None:
    """Bob leaves after the job's query. The check after that notice ends before he is subscribed, or later."""
    noticed, checked = threading.Event(), threading.Event()
    dispatched, allowed = Hub._dispatch, consumers.LiveConsumer._is_still_allowed

    def dispatch(hub: Hub, channel: str, payload: str) -> None:
        dispatched(hub, channel, payload)
        noticed.set()

    async def is_still_allowed(consumer: Any) -> bool:
        while check == "ends last" and job.pk not in consumer._inbox.jobs:
            await asyncio.sleep(0.01)
        is_allowed = await allowed(consumer)
        if noticed.is_set():
            checked.set()
        return is_allowed

    async def leave(job_id: str) -> None:
        await database_sync_to_async(lambda: Membership.objects.filter(user=bob).delete())()
        assert await asyncio.to_thread(noticed.wait, 60)
        if check == "ends first":
            assert await asyncio.to_thread(checked.wait, 60)

    watcher = watch(bob)
    watcher.settle()
    monkeypatch.setattr(Hub, "_dispatch", dispatch)
    monkeypatch.setattr(consumers.LiveConsumer, "_is_still_allowed", is_still_allowed)
    after_look_up(monkeypatch, leave)
    watcher.say({"watch": job.pk})
    if check == "ends first":
        assert watcher.hear() == {"error": "not_found", "job": job.pk}
    else:
        code, frames = watcher.closed_with()
        assert code == consumers.CLOSE_NOT_ALLOWED and not [each for each in frames if "cursor" in each]
