"""What the database refuses whoever asks, proved by raw SQL."""

from itertools import product
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from backend.jobs.lifecycle import LEGAL_MOVES
from backend.jobs.models import TERMINAL_STATES, Job, JobState


def refused(sql: str, *values: Any) -> bool:
    try:
        with transaction.atomic(), connection.cursor() as db:
            db.execute(sql, values)
    except IntegrityError:
        return True
    return False


def put(job: Job, state: str) -> None:
    """Behind the guard's back, into any state."""
    finished = "now()" if state in TERMINAL_STATES else "NULL"
    with connection.cursor() as db:
        db.execute("ALTER TABLE jobs_job DISABLE TRIGGER laminar_guard_job")
        db.execute(f"UPDATE jobs_job SET state = %s, finished_at = {finished} WHERE id = %s", [state, job.pk])
        db.execute("ALTER TABLE jobs_job ENABLE TRIGGER laminar_guard_job")


def test_the_database_knows_the_same_legal_moves_as_the_code(job: Job) -> None:
    with connection.cursor() as db:
        db.execute("SET CONSTRAINTS ALL IMMEDIATE")  # else ALTER TABLE finds pending triggers
    for source, target in product(JobState.values, JobState.values):
        if source == target:
            continue
        put(job, source)
        finished = "now()" if target in TERMINAL_STATES else "NULL"
        move = f"UPDATE jobs_job SET state = %s, finished_at = {finished} WHERE id = %s"
        assert refused(move, target, job.pk) == (target not in LEGAL_MOVES[source]), (source, target)


@pytest.mark.parametrize("column", ["spec = '{}'", "team_id = 'team_x'", "project_id = 'proj_x'", "epoch = -1"])
def test_what_never_changes(job: Job, column: str) -> None:
    assert refused(f"UPDATE jobs_job SET {column} WHERE id = %s", job.pk)


def test_a_job_is_never_deleted(job: Job) -> None:
    assert refused("DELETE FROM jobs_job WHERE id = %s", job.pk)


def test_a_state_that_does_not_exist_is_refused(job: Job) -> None:
    assert refused("UPDATE jobs_job SET state = 'happy' WHERE id = %s", job.pk)


def test_finished_and_terminal_go_together(job: Job) -> None:
    assert refused("UPDATE jobs_job SET state = 'cancelled' WHERE id = %s", job.pk)
    assert refused("UPDATE jobs_job SET finished_at = now() WHERE id = %s", job.pk)


@pytest.mark.parametrize("sql", ["UPDATE jobs_jobevent SET message = 'rewritten'", "DELETE FROM jobs_jobevent"])
def test_events_are_neither_changed_nor_deleted(job: Job, sql: str) -> None:
    assert refused(sql)
    assert job.events.count() == 1


def test_events_are_not_truncated(job: Job) -> None:
    with connection.cursor() as db:
        db.execute("SET CONSTRAINTS ALL IMMEDIATE")
        db.execute("ALTER TABLE jobs_jobevent ENABLE TRIGGER laminar_guard_event_truncate")  # tests/conftest.py
    assert refused("TRUNCATE jobs_jobevent CASCADE")


def test_one_live_attempt_and_one_live_reservation_a_role(job: Job, attempt: Any) -> None:
    assert refused(
        "INSERT INTO jobs_jobattempt (job_id, n, epoch, submission_id, token_sha256, resume_from, acked_seq, "
        "created_at, outcome, message) VALUES (%s, 2, 2, 'x', 'x', '', 0, now(), '', '')",
        job.pk,
    )
    assert refused(
        "INSERT INTO pools_reservation (job_id, attempt, pool_id, team_id, role, devices, created_at) "
        "VALUES (%s, 2, %s, %s, 'trainer', 1, now())",
        job.pk,
        job.pool_id,
        job.team_id,
    )
