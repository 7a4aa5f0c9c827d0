"""The replica rows of a job's page: main activities as shares and shapes; of many replicas, every n-th."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from django.test import Client

from backend.jobs.models import Job, JobState
from backend.pages.job.panels.replica_rows import COLUMNS, HEIGHTS, MOST_ROWS, ReplicaRows, replica_rows_of
from backend.telemetry.models import ReplicaActivity
from backend.telemetry.replicas.activity import DOINGS
from tests.frontend import seed
from tests.frontend.seed import World
from tests.frontend.seed_replicas import told_by_replicas

pytestmark = pytest.mark.django_db


FOR_S: Final = 600


def rows_of(job: Job) -> ReplicaRows:
    """At the time of the last reports, however long it took to store them."""
    job.refresh_from_db()
    assert job.started_at is not None
    found = replica_rows_of(job, now=job.started_at + timedelta(seconds=FOR_S))
    assert found is not None
    return found


def ran(world: World, num: int) -> Job:
    job = seed.running(world, steps_done=3, at=datetime.now(UTC) - timedelta(seconds=FOR_S))
    job.refresh_from_db()
    assert job.started_at is not None
    told_by_replicas(job, num, since=job.started_at, until=job.started_at + timedelta(seconds=FOR_S))
    return job


def test_each_replica_has_a_row_with_its_shares_in_words(world: World) -> None:
    found = rows_of(ran(world, 2))
    assert [row.replica for row in found.rows] == [0, 1]
    assert found.rows[0].did == "generating 55 %, idle 20 %, reading prompts 10 %"
    assert re.fullmatch(r"idle (5|6)\d %, generating 2\d %, .*", found.rows[1].did), found.rows[1].did
    held = found.rows[1].held
    assert held is not None and (held.incarnation, held.num_waiting, held.kv_used) == (1, 1, 0.4)


def test_a_piece_is_what_was_done_most_and_neighbours_are_one(world: World) -> None:
    pieces = rows_of(ran(world, 2)).rows[0].pieces
    assert {piece.doing for piece in pieces} == {"decode"}
    assert len(pieces) == 1 and pieces[0].width > 90


def test_no_activity_is_shown_by_colour_alone(owner: Client, world: World) -> None:
    assert len(set(HEIGHTS.values())) == len(DOINGS)
    page = owner.get(f"/jobs/{ran(world, 2).pk}/").content.decode()
    rects = re.findall(r'<rect x="[\d.]+%" y="\d+" width="[\d.]+%" height="(\d+)" data-doing="(\w+)"><title>', page)
    assert rects and all(int(height) == HEIGHTS[doing] for height, doing in rects)
    assert "generating 55 %" in page and "restarted 1 time" in page


def test_replica_before_its_first_weights_has_no_version(owner: Client, world: World) -> None:
    began = datetime.now(UTC) - timedelta(seconds=FOR_S)
    job = seed.running(world, steps_done=0, at=began)
    told_by_replicas(job, 1, since=began, until=began + timedelta(seconds=20), version=-1)
    page = owner.get(f"/jobs/{job.pk}/").content.decode()
    assert "no weights yet · cache" in page and "version -" not in page


@pytest.mark.long
def test_of_very_many_every_so_manieth_is_shown_and_that_is_said(owner: Client, world: World) -> None:
    job = ran(world, 100)
    found = rows_of(job)
    assert found.num == 100 and len(found.rows) == MOST_ROWS and found.stride == 13
    assert [row.replica for row in found.rows] == list(range(0, 100, 13))
    assert "8 of 100: every 13th, 0 to 91" in owner.get(f"/jobs/{job.pk}/").content.decode()


def test_rows_are_there_before_anything_was_told(owner: Client, world: World) -> None:
    job = seed.running(world, steps_done=1, rollout={"replicas": 3})
    assert [(row.pieces, row.did) for row in rows_of(job).rows] == [([], "")] * 3
    assert owner.get(f"/jobs/{job.pk}/").content.count(b"No reports.") == 3


def test_what_never_ran_or_is_forgotten_has_no_rows(owner: Client, world: World) -> None:
    queued = seed.submitted(world)
    assert replica_rows_of(queued, now=datetime.now(UTC)) is None
    job = ran(world, 2)
    seed.ended(job, JobState.SUCCEEDED, message="All 3 steps are done.")
    assert rows_of(job).rows[0].held is None, "what is over holds nothing"
    ReplicaActivity.objects.all().delete()
    job.replica_minutes.all().delete()
    job.refresh_from_db()
    assert replica_rows_of(job, now=datetime.now(UTC)) is None
    assert b"Replicas over time" not in owner.get(f"/jobs/{job.pk}/").content


def test_rolled_up_minutes_draw_the_same_as_spans(world: World) -> None:
    job = ran(world, 2)
    seed.ended(job, JobState.SUCCEEDED, message="All 3 steps are done.")
    ReplicaActivity.objects.all().delete()
    found = rows_of(job)
    assert found.rows[0].did == "generating 55 %, idle 20 %, reading prompts 10 %"
    assert found.rows[0].pieces[0].doing == "decode"
    assert all(piece.x >= 0 and piece.x + piece.width <= 100.001 for row in found.rows for piece in row.pieces)
    assert len(found.rows[1].pieces) <= COLUMNS
