"""Event streams over a real uvicorn: no event lost, repeated, or sent to an unauthorized reader."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from backend.accounts.models import ApiKey, Membership, User
from backend.accounts.services import revoke_api_key
from backend.feeds import open_streams, streaming
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.lifecycle import locked_job, record_event
from backend.jobs.models import Job, JobEvent
from tests.waiting import eventually


def happen(job: Job, *types: str) -> None:
    for name in types:
        with transaction.atomic():
            record_event(locked_job(job.pk), name, actor="user:1", now=datetime.now(UTC))


class TestOneJob:
    def test_missed_events_come_first_then_new_ones(self, listen: Any, job: Job) -> None:
        happen(job, "one")
        stream = listen(f"/jobs/{job.pk}/events")
        assert stream.response.headers["content-type"] == "text/event-stream"
        frames = [stream.next() for _ in range(JobEvent.objects.filter(job=job).count())]
        assert [frame["event"] for frame in frames][-1] == "one"
        began = time.monotonic()
        happen(job, "two")
        live = stream.next()
        print(f"commit to frame: {1_000 * (time.monotonic() - began):.0f} ms")
        assert live["event"] == "two" and int(live["id"]) == live["data"]["seq"] == int(frames[-1]["id"]) + 1

    def test_stream_resumes_after_a_cut(self, listen: Any, job: Job) -> None:
        first = listen(f"/jobs/{job.pk}/events")
        seen = [first.next()]
        first.response.close()
        happen(job, "one", "two", "three")
        second = listen(f"/jobs/{job.pk}/events", last=seen[-1]["id"])
        while seen[-1]["event"] != "three":
            seen.append(second.next())
        assert [int(frame["id"]) for frame in seen] == list(range(1, len(seen) + 1)), "no gap, no duplicate"

    def test_stream_ends_with_its_job_and_then_is_204(self, listen: Any, job: Job) -> None:
        stream = listen(f"/jobs/{job.pk}/events")
        stream.next()
        cancel_job(job.pk, actor="user:1", now=datetime.now(UTC))
        frames = stream.rest()
        assert frames[-1] == {"event": "end", "data": {"state": "cancelled"}}
        assert frames[-2]["data"]["to_state"] == "cancelled"
        assert listen(f"/jobs/{job.pk}/events", last=frames[-2]["id"]).status == 204, "so browsers stop reconnecting"
        assert listen(f"/jobs/{job.pk}/events", last=1).status == 200

    @pytest.mark.long
    def test_hundreds_are_replayed_in_order(self, listen: Any, job: Job) -> None:
        happen(job, *["step"] * 450)
        cancel_job(job.pk, actor="user:1", now=datetime.now(UTC))
        ids = [int(frame["id"]) for frame in listen(f"/jobs/{job.pk}/events").rest() if "id" in frame]
        assert ids == list(range(1, JobEvent.objects.filter(job=job).count() + 1)) and len(ids) > 450

    def test_quiet_stream_sends_heartbeats(self, listen: Any, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(streaming, "HEARTBEAT_S", 0.2)
        stream = listen(f"/jobs/{job.pk}/events")
        frames = [stream.any() for _ in range(6)]
        assert sum(frame.get("comment") == "still here" for frame in frames) >= 2

    def test_request_without_accept_header_gets_a_page(self, listen: Any, job: Job) -> None:
        page = listen(f"/jobs/{job.pk}/events?limit=1", accept="application/json").problem()
        assert page["data"][0]["seq"] == 1

    def test_events_no_longer_stored_are_410(self, listen: Any, job: Job) -> None:
        happen(job, "one", "two", "three")
        with connection.cursor() as db:
            db.execute("ALTER TABLE jobs_jobevent DISABLE TRIGGER laminar_guard_event")
            db.execute("DELETE FROM jobs_jobevent WHERE job_id = %s AND seq < 3", [job.pk])
            db.execute("ALTER TABLE jobs_jobevent ENABLE TRIGGER laminar_guard_event")
        for accept in ("text/event-stream", "application/json"):
            gone = listen(f"/jobs/{job.pk}/events?after=1", accept=accept)
            assert (gone.status, gone.problem()["oldest_seq"]) == (410, 3)
        assert listen(f"/jobs/{job.pk}/events", last=2).next()["id"] == "3"

    @pytest.mark.parametrize("last", ["x", "-1", "1.5", str(2**63)])
    def test_invalid_last_event_id_is_refused(self, listen: Any, job: Job, last: str) -> None:
        assert listen(f"/jobs/{job.pk}/events", last=last).status == 422


class TestWhoMayListen:
    def test_another_teams_job_does_not_exist(self, listen: Any, job: Job, make_key: Any, charlie: User) -> None:
        assert listen(f"/jobs/{job.pk}/events", key=make_key(charlie)).status == 404

    def test_revoked_key_is_cut_off_at_once(
        self, listen: Any, job: Job, api: Any, key_row: Callable[[str], ApiKey]
    ) -> None:
        stream = listen(f"/jobs/{job.pk}/events")
        happen(job, "before")
        while stream.next()["event"] != "before":
            pass
        revoke_api_key(key_row(api.key), now=datetime.now(UTC))
        happen(job, "secret")
        assert stream.rest() == [{"event": "goodbye", "data": {"code": "unauthenticated"}}]

    @pytest.mark.long
    def test_expired_key_ends_stream_at_the_recheck(
        self, listen: Any, job: Job, make_key: Any, alice: User, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(streaming, "RECHECK_EVERY_S", 0.2)
        stream = listen(f"/jobs/{job.pk}/events", key=make_key(alice, expires_in=timedelta(seconds=3)))
        assert stream.rest()[-1] == {"event": "goodbye", "data": {"code": "unauthenticated"}}

    def test_former_member_is_cut_off_at_once(self, listen: Any, job: Job, bob: User, make_key: Any) -> None:
        """By the notice of the change: the periodic check would come only half a minute later."""
        stream = listen(f"/jobs/{job.pk}/events", key=make_key(bob))
        happen(job, "before")
        while stream.next()["event"] != "before":
            pass
        Membership.objects.filter(user=bob).delete()
        happen(job, "secret")
        assert [frame["event"] for frame in stream.rest()] == ["goodbye"]

    def test_streams_per_team_are_limited_and_freed(
        self, listen: Any, job: Job, make_key: Any, bob: User, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(open_streams, "MOST_OF_A_TEAM", 2)
        streams = [listen(f"/jobs/{job.pk}/events") for _ in range(2)]
        for stream in streams:
            stream.next()
        refused = listen(f"/jobs/{job.pk}/events", key=make_key(bob))
        assert (refused.status, refused.problem()["code"]) == (429, "too_many_streams")
        streams[0].response.close()
        eventually(
            lambda: listen(f"/jobs/{job.pk}/events").status,
            "the closed stream frees its place",
            until=lambda status: status != 429,
            every_s=0.1,
        )

    def test_open_streams_hold_no_connection_of_the_pool(self, listen: Any, job: Job) -> None:
        """A process has twelve connections; thirty readers must not take them."""
        streams = [listen(f"/jobs/{job.pk}/events") for _ in range(30)]
        for stream in streams:
            stream.next()
        assert listen(f"/jobs/{job.pk}", accept="application/json").status == 200
        happen(job, "after")
        for stream in streams:
            while stream.next()["event"] != "after":
                pass


class TestTheTeam:
    def test_every_job_of_the_team_and_no_other(self, listen: Any, make_job: Any, job: Job, other_job: Job) -> None:
        stream = listen("/events")
        stream.any()  # the stream has begun
        happen(other_job, "hidden")
        happen(job, "one")
        second = make_job(at=datetime.now(UTC))
        happen(second, "two")
        frames = [stream.next()]
        while frames[-1]["event"] != "two":
            frames.append(stream.next())
        assert {frame["data"]["job_id"] for frame in frames} == {job.pk, second.pk}
        seqs = [frame["data"]["seq"] for frame in frames if frame["data"]["job_id"] == second.pk]
        assert seqs == list(range(1, len(seqs) + 1)), "a new job's events are sent from the first"
        assert "hidden" not in {frame["event"] for frame in frames}

    def test_reconnection_loses_nothing(self, listen: Any, job: Job, make_job: Any) -> None:
        stream = listen("/events")
        stream.any()
        happen(job, "one")
        last = stream.next()
        stream.response.close()
        happen(job, "two")
        other = make_job(at=datetime.now(UTC))
        happen(other, "three")
        again = listen("/events", last=last["id"])
        frames: list[dict[str, Any]] = []
        while not frames or frames[-1]["event"] != "three":
            frames.append(again.next())
        names = [frame["event"] for frame in frames]
        assert "two" in names and "submitted" in names

    @pytest.mark.long
    def test_late_committed_event_is_sent(
        self, listen: Any, job: Job, make_job: Any, in_own_connection: Callable[..., Any]
    ) -> None:
        """It has a lower id than an event that the client has already received."""
        other = make_job()
        stream = listen("/events")
        stream.any()
        with transaction.atomic():
            record_event(locked_job(job.pk), "late", actor="user:1", now=datetime.now(UTC))
            thread = threading.Thread(target=in_own_connection(lambda: happen(other, "early")))
            thread.start()
            thread.join()
            seen = stream.next()
            assert seen["event"] == "early"
            stream.response.close()
        assert JobEvent.objects.get(type="late").pk < int(seen["id"])
        again = listen("/events", last=seen["id"])
        events: list[str] = []
        while "late" not in events:
            events.append(again.next()["event"])

    def test_unknown_or_foreign_id_is_410(self, listen: Any, job: Job, make_key: Any, charlie: User) -> None:
        assert listen("/events", last=10**12).status == 410
        ours = JobEvent.objects.filter(job=job).first()
        assert ours is not None
        assert listen("/events", last=ours.pk, key=make_key(charlie)).status == 410
