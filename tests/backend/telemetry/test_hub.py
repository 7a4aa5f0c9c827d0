"""NOTIFYs of a real Postgres through a real uvicorn to real WebSockets."""

import time
from contextlib import suppress
from typing import Any

import pytest
from django.db import connection, transaction
from websockets.exceptions import InvalidStatus

from backend.accounts.models import Membership, User
from backend.jobs.lifecycle import locked_job, next_cursor
from backend.jobs.models import Job
from backend.telemetry.live import consumers
from backend.telemetry.live.hub import MOST_JOBS_WAITING, Inbox


def move(job: Job, times: int = 1) -> int:
    for _ in range(times):
        with transaction.atomic():
            cursor = next_cursor(locked_job(job.pk))
    return cursor


class TestNudges:
    def test_subscription_starts_with_the_jobs_cursor(self, watch: Any, alice: User, job: Job) -> None:
        watcher = watch(alice, {"watch": job.pk})
        frames = watcher.hear_until(lambda frame: "job" in frame)
        assert frames[-1] == {"job": job.pk, "cursor": 1}

    def test_commit_is_announced_at_once_and_rollback_never(self, watch: Any, bob: User, job: Job) -> None:
        watcher = watch(bob, {"watch": job.pk})
        watcher.hear_until(lambda frame: "job" in frame)
        watcher.settle()
        with suppress(ZeroDivisionError), transaction.atomic():
            next_cursor(locked_job(job.pk))
            raise ZeroDivisionError
        assert watcher.hears_nothing()
        started = time.monotonic()
        cursor = move(job)
        assert watcher.hear() == {"job": job.pk, "cursor": cursor}
        print(f"commit to frame: {1000 * (time.monotonic() - started):.0f} ms")

    def test_burst_takes_few_frames_and_ends_at_the_newest(self, watch: Any, alice: User, job: Job) -> None:
        watcher = watch(alice, {"watch": job.pk})
        watcher.settle()
        newest = move(job, 100)
        frames = watcher.hear_until(lambda frame: frame.get("cursor") == newest)
        cursors = [frame["cursor"] for frame in frames]
        assert cursors == sorted(cursors) and len(frames) < 80

    @pytest.mark.long
    def test_watched_team_covers_only_its_jobs(self, watch: Any, vera: User, job: Job, other_job: Job) -> None:
        watcher = watch(vera, {"watch_team": True})
        watcher.settle()
        move(other_job)
        assert watcher.hears_nothing()
        assert move(job) and watcher.hear()["job"] == job.pk
        watcher.say({"watch_team": False})
        watcher.settle()
        move(job)
        assert watcher.hears_nothing()

    def test_unwatched_job_sends_nothing(self, watch: Any, alice: User, job: Job) -> None:
        watcher = watch(alice, {"watch": job.pk}, {"unwatch": job.pk})
        watcher.settle()
        move(job)
        assert watcher.hears_nothing()

    def test_lost_postgres_connection_makes_sockets_pull_all(self, watch: Any, alice: User, job: Job) -> None:
        watcher = watch(alice, {"watch": job.pk})
        watcher.settle()
        with connection.cursor() as db:
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'laminar-live-hub' AND datname = current_database()"
            )
        assert watcher.hear() == {"pull": True}
        cursor = move(job)
        assert watcher.hear() == {"job": job.pk, "cursor": cursor}


class TestWhoMayWatch:
    @pytest.mark.long_except("", "http://127.0.0.1:8001", "https://127.0.0.1:8000", "http://evil.example")
    @pytest.mark.parametrize(
        "origin",
        [None, "null", "", "http://127.0.0.1:8001", "https://127.0.0.1:8000", "http://127.0.0.1:8000.evil.example",
         "http://evil.example", "HTTP://127.0.0.1:8000", "http://127.0.0.1:8000/", "http://localhost:8000", "*"],
    )  # fmt: skip
    def test_another_origin_is_refused(self, watch: Any, alice: User, origin: str | None) -> None:
        with pytest.raises(InvalidStatus) as refusal:
            watch(alice, origin=origin)
        assert refusal.value.response.status_code == 403

    def test_elsewhere_there_is_no_socket(self, watch: Any, alice: User) -> None:
        with pytest.raises(InvalidStatus):
            watch(alice, path="/more")

    def test_other_teams_job_is_answered_like_a_missing_one(self, watch: Any, charlie: User, job: Job) -> None:
        watcher = watch(charlie)
        watcher.settle()
        answers = []
        for name in (job.pk, "job_00000000000000000000", "job_\0", "x" * 500):
            watcher.say({"watch": name})
            answers.append(watcher.hear()["error"])
        assert answers == ["not_found"] * 4
        move(job)
        assert watcher.hears_nothing()

    def test_no_frame_is_sent_after_logout(self, watch: Any, alice: User, job: Job) -> None:
        watcher = watch(alice, {"watch": job.pk})
        watcher.settle()
        watcher.http.logout()
        move(job, 5)
        assert watcher.closed_with() == (consumers.CLOSE_NOT_ALLOWED, [])

    def test_lost_membership_closes_the_socket_at_once(self, watch: Any, bob: User, job: Job) -> None:
        watcher = watch(bob, {"watch_team": True})
        watcher.settle()
        Membership.objects.filter(user=bob).delete()
        move(job)
        assert watcher.closed_with() == (consumers.CLOSE_NOT_ALLOWED, [])

    def test_disabled_user_is_disconnected(self, watch: Any, bob: User, alice: User, job: Job) -> None:
        watcher, other = watch(bob, {"watch": job.pk}), watch(alice, {"watch": job.pk})
        watcher.settle(), other.settle()
        bob.is_active = False
        bob.save()
        assert watcher.closed_with() == (consumers.CLOSE_NOT_ALLOWED, [])
        assert move(job) == other.hear()["cursor"]

    def test_lost_right_without_a_notice_is_found_at_recheck(
        self, watch: Any, bob: User, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(consumers, "RECHECK_EVERY_S", 0.3)
        watcher = watch(bob, {"watch": job.pk})
        watcher.settle()
        with connection.cursor() as db:
            db.execute("DELETE FROM accounts_membership WHERE user_id = %s", [bob.pk])
        assert watcher.closed_with()[0] == consumers.CLOSE_NOT_ALLOWED


@pytest.mark.long_except("[]", '{"watch": 1}')
@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "1", '{"watch": 1}', '{"watch_team": 1}', '{"no": "such"}', "x" * 2_000, "[" * 900]
)
def test_invalid_frame_closes_only_its_socket(watch: Any, alice: User, job: Job, text: str) -> None:
    watcher, other = watch(alice), watch(alice, {"watch": job.pk})
    watcher.socket.send(text)
    assert watcher.closed_with()[0] == consumers.CLOSE_BAD_FRAME
    other.settle()
    assert move(job) == other.hear()["cursor"]


def test_number_of_watched_jobs_is_limited(watch: Any, alice: User, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "MOST_WATCHED", 0)
    watcher = watch(alice, {"watch": job.pk})
    assert watcher.hear_until(lambda frame: "error" in frame)[-1]["error"] == "too_many"


def test_inbox_keeps_one_cursor_per_job_and_is_bounded() -> None:
    inbox = Inbox(user="user 1", session="session x")
    inbox.teams = frozenset({"team_a"})
    for cursor in (5, 9, 7):
        inbox.offer("team_a", "job_a", cursor)
    inbox.offer("team_b", "job_b", 1)
    assert inbox.take() == ['{"job": "job_a", "cursor": 9}'] and inbox.take() == []
    for n in range(MOST_JOBS_WAITING + 1):
        inbox.offer("team_a", f"job_{n}", 1)
    assert inbox.take() == ['{"pull": true}']
