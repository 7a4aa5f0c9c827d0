"""Rollups equal the points that they summarise, whatever is replayed, repeated or requested."""

import random
from collections import defaultdict
from datetime import datetime

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from backend.jobs.lifecycle import locked_job, next_cursor
from backend.jobs.models import Job
from backend.telemetry.models import MetricPoint, MetricRollup, MetricSeries
from backend.telemetry.series.points import NewPoint, store_points
from backend.telemetry.series.rollups import ROLL_AFTER, SIZES
from backend.telemetry.series.thinned import thinned_metrics


class Writer:
    def __init__(self, job: Job, now: datetime) -> None:
        self.job, self.now, self.chance = job, now, random.Random(5)
        self.truth: dict[str, dict[int, tuple[int, float]]] = defaultdict(dict)

    def write(self, attempt: int, steps: range, names: tuple[str, ...] = ("loss",), *, batch: int = 400) -> None:
        for at in range(0, len(steps), batch):
            with transaction.atomic():
                job = locked_job(self.job.pk)
                points = []
                piece = steps[at : at + batch]
                # Once per batch, as in ingest: reading a row changed n times in one transaction takes n² steps.
                before = next_cursor(job, count=len(piece)) - len(piece)
                for cursor, step in enumerate(piece, start=before + 1):
                    for name in names:
                        value = self.chance.gauss(0, 1)
                        points.append(NewPoint(name=name, step=step, at=self.now, value=value, cursor=cursor))
                        if self.truth[name].get(step, (0, 0.0))[0] < attempt:
                            self.truth[name][step] = (attempt, value)
                store_points(job, attempt, points)

    def values(self, name: str) -> dict[int, float]:
        return {step: value for step, (_, value) in sorted(self.truth[name].items())}


@pytest.fixture
def writer(job: Job, now: datetime) -> Writer:
    return Writer(job, now)


def check_rollups(job: Job, writer: Writer) -> None:
    """Compares every row with the points; no point below `rolled_to` is in no row or in two rows of a size."""
    for series in MetricSeries.objects.filter(job=job):
        below = {step: value for step, value in writer.values(series.name).items() if step < series.rolled_to}
        for size in SIZES:
            rows = {row.first_step: row for row in MetricRollup.objects.filter(series=series, size=size)}
            expected: dict[int, list[int]] = defaultdict(list)
            for step in below:
                expected[step // size * size].append(step)
            assert sorted(rows) == sorted(expected), (series.name, size)
            for first, steps in expected.items():
                row, values = rows[first], [below[step] for step in steps]
                assert (row.count, row.last_step, row.low, row.high) == (
                    len(steps),
                    max(steps),
                    min(values),
                    max(values),
                )
                assert row.total == pytest.approx(sum(values))


def check_thinned(job: Job, writer: Writer, name: str, max_points: int, low: int, high: int) -> None:
    page = thinned_metrics(job, max_points, [name], from_step=low, to_step=high)
    truth = {step: value for step, value in writer.values(name).items() if low <= step <= high}
    line, band = page.series.get(name, []), page.bands.get(name, [])
    assert len(line) <= max_points
    if not band:
        assert dict(line) == truth
        return
    ends = [step for step, _ in line]
    assert ends == sorted(ends) and ends[-1] == max(truth)
    groups = [
        [value for step, value in truth.items() if before < step <= end]
        for before, end in zip([low - 1, *ends], ends, strict=False)
    ]
    for (_, mean), (_, lowest, highest), values in zip(line, band, groups, strict=True):
        assert (lowest, highest) == (min(values), max(values))
        assert mean == pytest.approx(sum(values) / len(values))


def test_rollups_equal_their_points(job: Job, writer: Writer) -> None:
    writer.write(1, range(1, 9_001), ("loss", "reward/mean"))
    check_rollups(job, writer)
    rolled = MetricSeries.objects.get(job=job, name="loss").rolled_to
    assert 9_001 - ROLL_AFTER - 400 < rolled <= 9_000


def test_short_series_has_no_rollups(job: Job, writer: Writer) -> None:
    writer.write(1, range(1, ROLL_AFTER))
    assert not MetricRollup.objects.filter(series__job=job).exists()


@pytest.mark.long
def test_later_attempt_replaces_rollups(job: Job, writer: Writer) -> None:
    writer.write(1, range(1, 7_001))
    writer.write(2, range(5_001, 5_400))
    check_rollups(job, writer)
    check_thinned(job, writer, "loss", 300, 0, 10_000)
    writer.write(2, range(5_400, 12_000))
    writer.write(3, range(2_000, 3_500))
    check_rollups(job, writer)
    check_thinned(job, writer, "loss", 300, 0, 20_000)


def test_replay_changes_nothing(job: Job, writer: Writer) -> None:
    writer.write(1, range(1, 6_001))
    points = list(MetricPoint.objects.order_by("series_id", "step").values())
    writer.write(1, range(3_000, 6_001))
    assert points == list(MetricPoint.objects.order_by("series_id", "step").values())
    check_rollups(job, writer)
    check_thinned(job, writer, "loss", 200, 0, 10_000)


@pytest.mark.long
def test_any_range_in_any_number_of_buckets_is_exact(job: Job, writer: Writer) -> None:
    writer.write(1, range(1, 12_001))
    writer.write(2, range(9_000, 13_000))
    chance = random.Random(11)
    for _ in range(60):
        low = chance.randrange(0, 13_500)
        high = low + chance.choice([0, 5, 300, 2_000, 9_000, 20_000])
        check_thinned(job, writer, "loss", chance.choice([2, 7, 50, 500, 2_000]), low, high)


def test_sparse_series_comes_point_by_point(job: Job, writer: Writer) -> None:
    writer.write(1, range(0, 3_001, 100), ("evaluation/reward",))
    page = thinned_metrics(job, 500, ["evaluation/reward"])
    assert dict(page.series["evaluation/reward"]) == writer.values("evaluation/reward") and page.bands == {}


def test_sampling_reads_rollups_and_not_the_points(job: Job, writer: Writer) -> None:
    writer.write(1, range(1, 20_001), batch=4_000)
    with connection.cursor() as db:
        db.execute("ANALYZE telemetry_metricpoint; ANALYZE telemetry_metricrollup")
    with CaptureQueriesContext(connection) as queries:
        thinned_metrics(job, 100)
    with connection.cursor() as db:
        db.execute("EXPLAIN (ANALYZE, FORMAT TEXT, TIMING OFF) " + queries[-1]["sql"])
        plan = "\n".join(row[0] for row in db.fetchall())
    rows = [float(part.split("actual rows=")[1].split()[0]) for part in plan.splitlines() if "actual rows=" in part]
    assert max(rows) < 20_001 / 4, plan
