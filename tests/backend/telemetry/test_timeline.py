"""The replicas' timeline: exact spans, or shares of time that add up to them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobAttempt, JobState
from backend.telemetry.models import ReplicaActivity
from backend.telemetry.replicas.activity import MOST_CELLS, MOST_SPANS, replica_timeline, store_activity
from backend.telemetry.retention import forget_old_spans
from engine.spec.facts import ReplicasObserved

START = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


def observed(*replicas: list[tuple[str, float, float]]) -> ReplicasObserved:
    state: dict[str, Any] = {"incarnation": 1, "version": 7, "kv_used": 0.5, "num_running": 1, "num_waiting": 0}
    state |= {"num_with_environment": 0, "num_prefilled": 0, "num_decoded": 0}
    rows = [
        state | {"replica": at, "spans": [{"doing": doing, "start_s": a, "end_s": b} for doing, a, b in spans]}
        for at, spans in enumerate(replicas)
    ]
    return ReplicasObserved.model_validate({"replicas": rows})


def tell(job: Job, body: ReplicasObserved, at: datetime, attempt: int = 1) -> None:
    with transaction.atomic():
        store_activity(locked_job(job.pk), attempt, body, at=at)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_spans_are_returned_unchanged(job: Job) -> None:
    tell(job, observed([("decode", -5, -1.5), ("weights", -1.5, 0)], [("idle", -5, 0)]), at(5))
    tell(job, observed([("decode", -5, 0)], []), at(10))
    timeline = replica_timeline(job, at(0), at(100))
    assert [(each.replica, each.doing, each.start, each.end) for each in timeline.spans] == [
        (0, "decode", at(0), at(3.5)),
        (0, "weights", at(3.5), at(5)),
        (0, "decode", at(5), at(10)),
        (1, "idle", at(0), at(5)),
    ]
    assert {(each.incarnation, each.version, each.attempt) for each in timeline.spans} == {(1, 7, 1)}
    assert timeline.cell_s == 0


def test_spans_are_clipped_to_the_range(job: Job) -> None:
    tell(job, observed([("decode", -5, -2), ("idle", -2, 0)]), at(5))
    tell(job, observed([("decode", -5, 0)]), at(10))
    timeline = replica_timeline(job, at(1), at(4))
    assert [(each.doing, each.start, each.end) for each in timeline.spans] == [
        ("decode", at(1), at(3)),
        ("idle", at(3), at(4)),
    ]
    assert replica_timeline(job, at(50), at(60)).spans == []


def test_too_many_spans_become_shares_that_add_up(job: Job) -> None:
    per_fact = [("decode" if each % 2 else "idle", -10 + each * 0.1, -9.9 + each * 0.1) for each in range(100)]
    for fact in range(1, 61):  # ten minutes of two replicas, 12,000 spans
        tell(job, observed(per_fact, per_fact), at(fact * 10))
    timeline = replica_timeline(job, at(0), at(600))
    assert timeline.spans == () and timeline.cell_s == 60 and len(timeline.cells) <= MOST_CELLS
    for replica in (0, 1):
        by_doing = {
            doing: sum(cell.seconds for cell in timeline.cells if (cell.replica, cell.doing) == (replica, doing))
            for doing in ("decode", "idle")
        }
        assert by_doing == {"decode": pytest.approx(300, abs=0.1), "idle": pytest.approx(300, abs=0.1)}
    assert all(cell.seconds <= 60.1 for cell in timeline.cells)
    few = replica_timeline(job, at(0), at(100))
    assert 0 < len(few.spans) <= MOST_SPANS and few.cells == ()


@pytest.mark.long
def test_day_of_many_replicas_is_bounded(job: Job) -> None:
    replicas = [[("decode", -3600.0, -1800.0), ("idle", -1800.0, 0.0)]] * 64
    for hour in range(1, 25):
        tell(job, observed(*replicas), at(hour * 3600))
    ReplicaActivity.objects.filter(job=job).update(num_spans=MOST_SPANS)
    timeline = replica_timeline(job, at(0), at(86_400))
    assert 0 < len(timeline.cells) <= MOST_CELLS
    assert sum(cell.seconds for cell in timeline.cells) == pytest.approx(64 * 86_400)


def test_old_job_keeps_minutes_only(attempt: JobAttempt, job: Job, now: datetime) -> None:
    tell(job, observed([("decode", -5, -2), ("idle", -2, 0)]), at(5))
    with transaction.atomic():
        locked = locked_job(job.pk)
        change_state(locked, JobState.RUNNING, actor="engine:1", now=now)
        change_state(locked, JobState.STOPPING, actor="engine:1", now=now, target_state=JobState.SUCCEEDED)
        change_state(locked, JobState.SUCCEEDED, actor="engine:1", now=now)
    keep = timedelta(days=90)
    assert forget_old_spans(keep=keep, now=now + keep) == 0
    assert forget_old_spans(keep=keep, now=now + keep + timedelta(seconds=1)) == 1
    job.refresh_from_db()
    timeline = replica_timeline(job, at(0), at(60))
    assert [(cell.doing, cell.seconds) for cell in timeline.cells] == [("decode", 3.0), ("idle", 2.0)]


def test_absurdly_old_span_is_cut(job: Job) -> None:
    tell(job, observed([("decode", -1e9, 0)]), at(0))
    [span] = replica_timeline(job, START - timedelta(days=1), at(1)).spans
    assert span.end - span.start == timedelta(hours=1)


def test_rest_returns_newest_minutes_or_requested_range(job: Job, api: Any) -> None:
    tell(job, observed([("decode", -5, 0)]), at(5))
    path = f"/jobs/{job.pk}/timeline"
    in_range = api.get(path, **{"from": at(0).isoformat(), "to": at(10).isoformat()}).json()
    assert [(span["doing"], span["start"]) for span in in_range["spans"]] == [("decode", "2026-01-05T12:00:00Z")]
    assert api.get(path).json()["spans"] == []
    for query in ({"from": "2026-01-05", "to": "2026-01-04"}, {"from": "0001-01-01T00:00:00+14:00"}, {"to": "x"}):
        assert api.get(path, **query).status_code == 422


def holding(num_replicas: int, *replicas: int, running: int = 0, incarnation: int = 1) -> ReplicasObserved:
    """Idle replicas with different states."""
    body = observed(*[[] for _ in replicas]).model_dump()
    for row, replica in zip(body["replicas"], replicas, strict=True):
        row |= {"replica": replica, "incarnation": incarnation, "kv_used": replica / 1000, "num_running": running}
        row |= {"num_waiting": 2, "num_with_environment": 3, "num_prefilled": 2**40, "num_decoded": replica}
    return ReplicasObserved.model_validate(body | {"num_replicas": num_replicas})


def test_very_many_replicas_report_in_turns(job: Job, api: Any) -> None:
    path = f"/jobs/{job.pk}/replicas"
    assert api.get(path).json() == {"num_replicas": 0, "replicas": []}
    tell(job, holding(3, 0, 1, 2, incarnation=9), at(0))
    tell(job, holding(900, *range(64)), at(1), attempt=2)
    answer = api.get(path).json()
    assert (answer["num_replicas"], len(answer["replicas"])) == (900, 64), "none of an earlier attempt"
    for fact, first in enumerate(range(64, 900, 64)):
        tell(job, holding(900, *range(first, min(first + 64, 900))), at(2 + fact), attempt=2)
    tell(job, holding(900, 7, running=5, incarnation=2), at(60), attempt=2)
    answer = api.get(path).json()
    assert [each["replica"] for each in answer["replicas"]] == list(range(900))
    assert answer["replicas"][7] == {
        "attempt": 2, "replica": 7, "incarnation": 2, "version": 7, "at": "2026-01-05T12:01:00Z", "kv_used": 0.007,
        "num_running": 5, "num_waiting": 2, "num_with_environment": 3, "num_prefilled": 2**40, "num_decoded": 7,
    }  # fmt: skip


def test_timeline_has_replica_states_up_to_a_limit(job: Job, api: Any) -> None:
    for second in range(80):
        tell(job, holding(64, *range(64), running=second), at(second))
    path = f"/jobs/{job.pk}/timeline"
    few = api.get(path, **{"from": at(3).isoformat(), "to": at(5).isoformat()}).json()
    assert [(each["replica"], each["num_running"]) for each in few["states"]] == [
        (replica, second) for second in (3, 4) for replica in range(64)
    ]
    assert api.get(path, **{"from": at(0).isoformat(), "to": at(80).isoformat()}).json()["states"] is None


def test_rows_of_an_earlier_release_have_no_states(job: Job, api: Any) -> None:
    tell(job, observed([("decode", -5, 0)]), at(5))
    ReplicaActivity.objects.update(states=None, num_states=0)
    assert api.get(f"/jobs/{job.pk}/replicas").json()["replicas"] == []
    answer = api.get(f"/jobs/{job.pk}/timeline", **{"from": at(0).isoformat(), "to": at(10).isoformat()}).json()
    assert (len(answer["spans"]), answer["states"]) == (1, [])
