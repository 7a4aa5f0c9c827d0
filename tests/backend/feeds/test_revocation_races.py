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


@pytest.fixture
def lose_membership_in_look_up(bob: User, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Wraps a look-up: after its query and before its result, bob leaves, and the hub announces it."""
    noticed, checked = threading.Event(), threading.Event()
    dispatched, allowed = Hub._dispatch, consumers.LiveConsumer._is_still_allowed

    def dispatch(hub: Hub, channel: str, payload: str) -> None:
        dispatched(hub, channel, payload)
        noticed.set()

    async def is_still_allowed(consumer: Any) -> bool:
        is_allowed = await allowed(consumer)
        if noticed.is_set():
            checked.set()
        return is_allowed

    def wrap(name: str) -> None:
        look_up = getattr(consumers, name)

        async def delayed(user: User, *arguments: Any) -> Any:
            result = await look_up(user, *arguments)
            if not noticed.is_set() and threads["armed"]:
                threads["armed"] = False
                await database_sync_to_async(lambda: Membership.objects.filter(user=bob).delete())()
                assert await asyncio.to_thread(noticed.wait, 60)
                assert await asyncio.to_thread(checked.wait, 60), "the check of the notice has passed"
            return result

        monkeypatch.setattr(Hub, "_dispatch", dispatch)
        monkeypatch.setattr(consumers.LiveConsumer, "_is_still_allowed", is_still_allowed)
        monkeypatch.setattr(consumers, name, delayed)
        noticed.clear()
        threads["armed"] = True

    threads = {"armed": False}
    return wrap


def test_job_subscribed_during_a_removal_closes_the_socket(
    watch: Any, bob: User, job: Job, lose_membership_in_look_up: Any
) -> None:
    watcher = watch(bob)
    watcher.settle()
    lose_membership_in_look_up("_visible_job")
    watcher.say({"watch": job.pk})
    code, frames = watcher.closed_with()
    assert code == consumers.CLOSE_NOT_ALLOWED and not [each for each in frames if "cursor" in each]
