"""Series through REST: ranges, names, and their reduction long after the job's end."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from backend.jobs.lifecycle import change_state, locked_job, next_cursor
from backend.jobs.models import Job, JobAttempt, JobState
from backend.telemetry.models import MetricPoint, MetricSeries
from backend.telemetry.retention import reduce_old_series
from backend.telemetry.series.drawing import MAX_POINTS, drawn_series
from backend.telemetry.series.points import LEAST_TO_COPY, NewPoint, store_points
from backend.telemetry.series.thinned import thinned_metrics

KEEP = timedelta(days=90)


def write(job: Job, steps: range, now: datetime, *names: str, attempt: int = 1) -> None:
    with transaction.atomic():
        locked = locked_job(job.pk)
        wanted = [(step, name) for step in steps for name in names or ("loss",)]
        # Once per batch, as in ingest: reading a row changed n times in one transaction takes n² steps.
        before = next_cursor(locked, count=len(wanted)) - len(wanted)
        points = [
            NewPoint(name=name, step=step, at=now, value=float(step), cursor=cursor)
            for cursor, (step, name) in enumerate(wanted, start=before + 1)
        ]
        store_points(locked, attempt, points)


def end(job: Job, now: datetime) -> None:
    with transaction.atomic():
        locked = locked_job(job.pk)
        change_state(locked, JobState.RUNNING, actor="engine:1", now=now)
        change_state(locked, JobState.STOPPING, actor="engine:1", now=now, target_state=JobState.SUCCEEDED)
        change_state(locked, JobState.SUCCEEDED, actor="engine:1", now=now)


@pytest.mark.parametrize("num", [3, LEAST_TO_COPY - 1, LEAST_TO_COPY, 2 * LEAST_TO_COPY])
def test_batch_of_any_size_is_stored_once(job: Job, now: datetime, num: int) -> None:
    write(job, range(num), now)
    write(job, range(num + 2), now)
    values = MetricPoint.objects.filter(series__job=job).order_by("step").values_list("step", "value")
    assert list(values) == [(step, float(step)) for step in range(num + 2)]


def test_two_large_batches_of_one_transaction_do_not_mix(job: Job, make_job: Any, now: datetime) -> None:
    other = make_job()
    with transaction.atomic():
        write(job, range(LEAST_TO_COPY), now)
        write(other, range(LEAST_TO_COPY), now, "other", attempt=2)
    assert MetricPoint.objects.filter(series__job=job).count() == LEAST_TO_COPY
    assert MetricPoint.objects.filter(series__job=other).count() == LEAST_TO_COPY


def test_rest_reads_a_range_of_steps(job: Job, api: Any, now: datetime) -> None:
    write(job, range(1, 3_001), now)
    path = f"/jobs/{job.pk}/metrics"
    answer = api.get(path, from_step=100, to_step=104).json()
    assert answer["series"] == {"loss": [[step, float(step)] for step in range(100, 105)]} and answer["bands"] == {}
    wide = api.get(path, from_step=1_001, max_points=20).json()
    assert len(wide["series"]["loss"]) == 20
    last, low, high = wide["bands"]["loss"][0]
    assert low == 1_001.0 and last == high and 1_106 <= last < 1_122  # a rollup of 16 steps is not split
    assert wide["bands"]["loss"][-1][2] == 3_000.0
    assert len(api.get(path, to_step=2_999).json()["series"]["loss"]) == 500
    assert api.get(path, from_step=9_000).json()["series"] == {}
    assert api.get(path, from_step=5, to_step=4).json()["series"] == {}


@pytest.mark.parametrize("query", [{}, {"from_step": 0}])
def test_times_of_points_are_returned_on_request(job: Job, api: Any, now: datetime, query: dict[str, int]) -> None:
    later = now + timedelta(seconds=1.5)
    write(job, range(1, 4), now)
    write(job, range(2, 3), later, attempt=2)
    path = f"/jobs/{job.pk}/metrics"
    assert api.get(path, **query).json()["times"] == {}
    answer = api.get(path, times=True, **query).json()
    assert [datetime.fromisoformat(at) for at in answer["times"]["loss"]] == [now, later, now]
    assert [step for step, _ in answer["series"]["loss"]] == [1, 2, 3]


def test_names_have_newest_point_of_latest_attempt(job: Job, api: Any, now: datetime) -> None:
    write(job, range(1, 11), now, "loss", "reward/mean")
    write(job, range(4, 7), now, "loss", attempt=2)
    assert api.get(f"/jobs/{job.pk}/metrics/names").json() == [
        {"name": "loss", "step": 6, "value": 6.0},
        {"name": "reward/mean", "step": 10, "value": 10.0},
    ]


def test_long_series_is_drawn_with_its_spikes(job: Job, now: datetime) -> None:
    write(job, range(1, 12_001), now, "reward/mean")
    MetricPoint.objects.filter(series__job=job, step=12_000).update(value=99_999.0)
    drawn = drawn_series(job, ["reward/mean"])
    line, band = drawn.series["reward/mean"], drawn.bands["reward/mean"]
    assert MetricSeries.objects.get(job=job).rolled_to > 10_000
    assert MAX_POINTS / 2 < len(line) <= MAX_POINTS and sum(drawn.counts["reward/mean"]) == 12_000
    assert max(high for *_, high in band) == 99_999.0 and band[0][1] == 1.0
    assert line == sorted(line) and line[-1] == (12_000, 99_999.0), "the newest point alone"


def test_means_and_counts_add_up_to_the_total(job: Job, api: Any, now: datetime) -> None:
    write(job, range(1, 5_001), now)
    for query in ({"max_points": 7}, {"max_points": 160}, {"from_step": 1_000, "to_step": 3_999, "max_points": 50}):
        answer = api.get(f"/jobs/{job.pk}/metrics", **query).json()
        counts, line = answer["counts"]["loss"], answer["series"]["loss"]
        first, last = query.get("from_step", 1), query.get("to_step", 5_000)
        wanted = pytest.approx(sum(range(first, last + 1)), rel=0.01)  # rollups at the edges are not split
        assert sum(n * mean for n, (_, mean) in zip(counts, line, strict=True)) == wanted
        assert sum(counts) == pytest.approx(last + 1 - first, rel=0.02)
    assert api.get(f"/jobs/{job.pk}/metrics", from_step=4_990).json()["counts"] == {}


def test_time_of_a_rollups_end_is_returned(job: Job, api: Any, now: datetime) -> None:
    write(job, range(1, 4_001), now)
    answer = api.get(f"/jobs/{job.pk}/metrics", max_points=20, times=True).json()
    assert [datetime.fromisoformat(at) for at in answer["times"]["loss"]] == [now] * len(answer["series"]["loss"])


class TestReduction:
    def test_keeps_means_and_extremes_of_every_range(self, attempt: JobAttempt, job: Job, now: datetime) -> None:
        write(job, range(1, 6_001), now)
        before = thinned_metrics(job, 50)
        end(job, now)
        assert reduce_old_series(keep=KEEP, now=now + KEEP + timedelta(seconds=1)) == 1
        series = MetricSeries.objects.get(job=job)
        assert series.is_reduced
        assert MetricPoint.objects.filter(series=series).count() == 6_000 - series.rolled_to + 1
        after = thinned_metrics(job, 50)
        assert after.bands == before.bands
        assert dict(after.series["loss"]) == pytest.approx(dict(before.series["loss"]))
        fine = thinned_metrics(job, 2_000)
        assert len(fine.series["loss"]) > 370 and fine.series["loss"][-1] == (6_000, 6_000.0)
        part = thinned_metrics(job, 100, from_step=1_000, to_step=1_100)
        assert all(992 <= step < 1_105 for step, _ in part.series["loss"])
        assert part.series["loss"]
        kept = [at for at in fine.times["loss"] if at is not None]
        assert len(kept) == 6_000 - series.rolled_to + 1 and fine.times["loss"][0] is None

    def test_short_series_keeps_every_point(self, attempt: JobAttempt, job: Job, now: datetime) -> None:
        write(job, range(1, 500), now)
        end(job, now)
        assert reduce_old_series(keep=KEEP, now=now + timedelta(days=1_000)) == 0
        assert MetricPoint.objects.filter(series__job=job).count() == 499

    def test_running_and_recent_jobs_are_not_reduced(self, attempt: JobAttempt, job: Job, now: datetime) -> None:
        write(job, range(1, 3_001), now)
        assert reduce_old_series(keep=KEEP, now=now + timedelta(days=1_000)) == 0
        end(job, now)
        assert reduce_old_series(keep=KEEP, now=now + KEEP) == 0
        assert MetricPoint.objects.filter(series__job=job).count() == 3_000

    def test_reduction_proceeds_in_pieces_and_once(self, attempt: JobAttempt, job: Job, now: datetime) -> None:
        write(job, range(1, 2_001), now, "a", "b", "c")
        end(job, now)
        late = now + timedelta(days=91)
        assert [reduce_old_series(keep=KEEP, now=late, limit=2) for _ in range(3)] == [2, 1, 0]
