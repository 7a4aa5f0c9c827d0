"""A page's pull over its socket: the same news as over HTTP, for those who may have them."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError, transaction

from backend.accounts.models import Membership, User
from backend.accounts.sessions.pace import Pace
from backend.jobs.lifecycle import locked_job, next_cursor
from backend.jobs.models import Job
from backend.telemetry.live import consumers
from backend.telemetry.live.hub import Inbox
from backend.telemetry.live.reads import news_text
from tests.backend.browser_sockets import Watcher
from tests.waiting import eventually

Watch = Callable[..., Watcher]


def pull(watcher: Watcher, job: Job, after: Any = 0) -> dict[str, Any]:
    """The answer, or the refusal."""
    watcher.say({"pull": job.pk, "after": after})
    return watcher.hear_until(lambda frame: "news" in frame or "error" in frame)[-1]


def test_pull_answers_as_over_http(watch: Watch, alice: User, job: Job) -> None:
    watcher = watch(alice, {"watch": job.pk})
    for after in (0, 1):
        answer = pull(watcher, job, after)
        over_http = watcher.http.get(f"/jobs/{job.pk}/live?after={after}").json()
        assert answer == {"job": job.pk, "after": after, "news": answer["news"]}
        assert answer["news"].keys() == over_http.keys()
        for name in ("cursor", "job", "events", "series", "verdict", "more"):
            assert answer["news"][name] == over_http[name], name


def test_pull_has_what_was_committed_before_it(watch: Watch, alice: User, job: Job) -> None:
    watcher = watch(alice, {"watch": job.pk})
    for _ in range(5):
        with transaction.atomic():
            cursor = next_cursor(locked_job(job.pk))
        assert pull(watcher, job)["news"]["cursor"] == cursor


def test_only_a_watched_job_is_answered(watch: Watch, alice: User, charlie: User, job: Job) -> None:
    assert pull(watch(alice), job)["error"] == "not_found"
    assert pull(watch(charlie, {"watch": job.pk}), job)["error"] == "not_found"
    watcher = watch(alice, {"watch": job.pk})
    assert "news" in pull(watcher, job)
    watcher.say({"unwatch": job.pk})
    assert pull(watcher, job)["error"] == "not_found"


def test_job_deleted_while_watched_is_not_found(watch: Watch, alice: User, job: Job) -> None:
    watcher = watch(alice, {"watch": job.pk})
    watcher.settle()
    news_of, port = news_text(), news_text
    port._filled_with = lambda job_id, after: news_of("job_" + "0" * 20, after)
    try:
        assert pull(watcher, job)["error"] == "not_found"
    finally:
        port._filled_with = news_of


@pytest.mark.long_except("-1", "True")
@pytest.mark.parametrize("after", [-1, 2**63, 1.5, "1", True, None, [1]], ids=str)
def test_cursor_that_is_none_closes_the_socket(watch: Watch, alice: User, job: Job, after: Any) -> None:
    watcher = watch(alice, {"watch": job.pk})
    watcher.say({"pull": job.pk, "after": after})
    assert watcher.closed_with()[0] == consumers.CLOSE_BAD_FRAME


def test_largest_cursor_has_no_news(watch: Watch, alice: User, job: Job) -> None:
    answer = pull(watch(alice, {"watch": job.pk}), job, consumers.LARGEST_CURSOR)
    assert (answer["news"]["events"], answer["news"]["series"]) == ([], {})


def test_pulls_of_a_user_are_limited_across_sockets(
    watch: Watch, alice: User, bob: User, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "PAGES_A_MINUTE", 2)
    monkeypatch.setattr(consumers, "pace", Pace(lambda: 5.0))
    one, other, his = (watch(user, {"watch": job.pk}) for user in (alice, alice, bob))
    assert "news" in pull(one, job) and "news" in pull(other, job)
    assert pull(one, job)["error"] == pull(other, job)["error"] == "too_often"
    assert "news" in pull(his, job)


def test_database_that_is_away_is_named_and_the_socket_stays(
    watch: Watch, alice: User, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = watch(alice, {"watch": job.pk})
    watcher.settle()

    def away(job_id: str, after: int) -> str:
        raise OperationalError("server closed the connection")

    with monkeypatch.context() as patch:
        patch.setattr(news_text, "_filled_with", away)
        assert pull(watcher, job)["error"] == "unavailable"
    assert "news" in pull(watcher, job)


def test_pages_that_want_the_same_are_answered_together(
    watch: Watch, alice: User, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    news_of, calls, go_on = news_text(), [], threading.Event()

    def count(job_id: str, after: int) -> str | None:
        calls.append(after)
        assert go_on.wait(60)
        return news_of(job_id, after)

    async def arrive(consumer: Any, *pulled: Any) -> None:
        arrived.append(consumer)
        await pull_of(consumer, *pulled)

    pull_of, arrived = consumers.LiveConsumer._pull, list[Any]()
    monkeypatch.setattr(consumers.LiveConsumer, "_pull", arrive)
    monkeypatch.setattr(news_text, "_filled_with", count)
    pages = [watch(alice, {"watch": job.pk}) for _ in range(8)]
    for page in pages:
        page.say({"pull": job.pk, "after": 0})
    eventually(lambda: len(arrived) == 8, "all pulls have arrived")
    go_on.set()
    for page in pages:
        assert page.hear_until(lambda frame: "news" in frame)
    assert len(calls) == 2, "the first, and all who came while it was read"


def test_news_read_before_a_removal_are_not_sent(
    watch: Watch, bob: User, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bob leaves the team while his page's news are read; the notice arrives before they could be sent."""
    news_of, noticed, rechecked = news_text(), threading.Event(), Inbox.recheck

    def leave_first(job_id: str, after: int) -> str | None:
        text = news_of(job_id, after)
        Membership.objects.filter(user=bob).delete()
        assert noticed.wait(60)
        return text

    def recheck(inbox: Inbox) -> None:
        rechecked(inbox)
        noticed.set()

    watcher = watch(bob, {"watch": job.pk})
    watcher.settle()
    monkeypatch.setattr(news_text, "_filled_with", leave_first)
    monkeypatch.setattr(Inbox, "recheck", recheck)
    watcher.say({"pull": job.pk, "after": 0})
    code, frames = watcher.closed_with()
    assert code == consumers.CLOSE_NOT_ALLOWED and not [frame for frame in frames if "news" in frame]


def test_reader_that_takes_nothing_costs_one_answer() -> None:
    async def live() -> list[str]:
        inbox = Inbox(user="user 1", session="session x")
        for n in range(100):
            inbox.answer(f"answer {n}")
        return [*inbox.take(), *inbox.take()]

    assert asyncio.run(live()) == ["answer 99"]
