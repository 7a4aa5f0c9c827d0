"""Changes that the database refuses from any client, proved with raw SQL."""

from itertools import product
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from backend.jobs.control.cancelling import cancel_job
from backend.jobs.lifecycle import LEGAL_MOVES
from backend.jobs.models import TERMINAL_STATES, Job, JobState
from tests.backend.conftest import NOW


def refused(sql: str, *values: Any) -> bool:
    try:
        with transaction.atomic(), connection.cursor() as db:
            db.execute(sql, values)
    except IntegrityError:
        return True
    return False


def put(job: Job, state: str) -> None:
    """Into any state, with the guards disabled."""
    finished = "now()" if state in TERMINAL_STATES else "NULL"
    with connection.cursor() as db:
        db.execute("SET CONSTRAINTS ALL IMMEDIATE")  # otherwise ALTER TABLE finds pending triggers
        db.execute("ALTER TABLE jobs_job DISABLE TRIGGER USER")
        db.execute(f"UPDATE jobs_job SET state = %s, finished_at = {finished} WHERE id = %s", [state, job.pk])
        db.execute("ALTER TABLE jobs_job ENABLE TRIGGER USER")
        db.execute("SET CONSTRAINTS ALL DEFERRED")


def moves(job: Job, source: str, target: str) -> bool:
    """True if the database allows the move. Rolled back afterwards."""
    finished = "now()" if target in TERMINAL_STATES else "NULL"
    with transaction.atomic():
        put(job, source)
        move = f"UPDATE jobs_job SET state = %s, version = version + 1, finished_at = {finished} WHERE id = %s"
        is_refused = refused(move, target, job.pk)
        transaction.set_rollback(True)
    return not is_refused


def refused_at_commit(sql: str, *values: Any) -> bool:
    """By the constraints checked at commit, checked here at once."""
    try:
        with transaction.atomic(), connection.cursor() as db:
            db.execute(sql, values)
            db.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except IntegrityError:
        return True
    finally:
        with connection.cursor() as db:
            db.execute("SET CONSTRAINTS ALL DEFERRED")
    return False


def test_database_and_code_have_the_same_legal_moves(job: Job) -> None:
    for source, target in product(JobState.values, JobState.values):
        if source != target:
            assert moves(job, source, target) == (target in LEGAL_MOVES[source]), (source, target)


def test_state_change_raises_the_version(job: Job) -> None:
    assert refused("UPDATE jobs_job SET state = 'starting' WHERE id = %s", job.pk)
    assert refused("UPDATE jobs_job SET state = 'starting', version = version + 2 WHERE id = %s", job.pk)


def test_state_change_requires_its_event(job: Job, attempt: Any) -> None:
    move = "UPDATE jobs_job SET state = 'running', version = version + 1 WHERE id = %s"
    event = (
        "INSERT INTO jobs_jobevent (job_id, seq, cursor, at, type, actor, from_state, to_state, job_version, reason, "
        "message, data) VALUES (%s, 9, 9, now(), 'state_changed', 'x', 'starting', %s, %s, '', '', '{}')"
    )
    assert refused_at_commit(move, job.pk)
    assert refused_at_commit(f"{move}; {event}", job.pk, job.pk, "running", job.version), "an old event does not count"
    assert refused_at_commit(f"{move}; {event}", job.pk, job.pk, "recovering", job.version + 1)
    assert not refused_at_commit(f"{move}; {event}", job.pk, job.pk, "running", job.version + 1)


def test_job_holds_devices_iff_its_state_does(job: Job, attempt: Any, make_job: Any) -> None:
    release = "UPDATE pools_reservation SET released_at = created_at WHERE job_id = %s"
    assert refused_at_commit(release, job.pk)
    assert refused_at_commit(f"{release} AND role = 'trainer'", job.pk)
    assert refused_at_commit("DELETE FROM pools_reservation WHERE job_id = %s", job.pk)
    waiting = make_job(devices=2)
    assert refused_at_commit("UPDATE pools_reservation SET job_id = %s WHERE job_id = %s", waiting.pk, job.pk)


@pytest.mark.parametrize(
    "change", ["message = 'after all'", "step = 9", "version = version + 1", "priority = 3", "answered = 1"]
)
def test_ended_job_cannot_be_changed(job: Job, change: str) -> None:
    cancel_job(job.pk, actor="user:1", now=NOW)
    assert refused(f"UPDATE jobs_job SET {change} WHERE id = %s", job.pk)
    assert not refused("UPDATE jobs_job SET cursor = cursor + 1 WHERE id = %s", job.pk), "late news still move it"


@pytest.mark.parametrize(
    "column",
    ["spec = '{}'", "team_id = 'team_x'", "project_id = 'proj_x'", "start_from = 'x'", "parent_id = id", "fence = -1"],
)
def test_immutable_columns_never_change(job: Job, column: str) -> None:
    assert refused(f"UPDATE jobs_job SET {column} WHERE id = %s", job.pk)


def test_job_is_never_deleted(job: Job) -> None:
    assert refused("DELETE FROM jobs_job WHERE id = %s", job.pk)


def test_unknown_state_is_refused(job: Job) -> None:
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


def test_one_live_attempt_and_one_reservation_per_role(job: Job, attempt: Any) -> None:
    assert refused(
        "INSERT INTO jobs_jobattempt (job_id, n, fence, submission_id, token_sha256, resume_from, resume_step, "
        "acked_seq, created_at, outcome, message, failure_class, evidence) "
        "VALUES (%s, 2, 2, 'x', 'x', '', 0, 0, now(), '', '', '', '{}')",
        job.pk,
    )
    assert refused(
        "INSERT INTO pools_reservation (job_id, attempt, pool_id, team_id, role, slot, devices, borrowed, created_at) "
        "VALUES (%s, 2, %s, %s, 'trainer', 0, 1, 0, now())",
        job.pk,
        job.pool_id,
        job.team_id,
    )
