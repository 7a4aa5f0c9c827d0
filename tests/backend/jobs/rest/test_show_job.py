"""GET /jobs/{id}, its events and its attempts."""

from datetime import datetime, timedelta
from typing import Any

from backend.jobs.lifecycle import change_state
from backend.jobs.models import Job, JobAttempt, JobState


def test_running_job_shows_its_progress(api: Any, job: Job, attempt: JobAttempt, now: datetime) -> None:
    change_state(job, JobState.RUNNING, actor="engine:1", now=now, phase="training", step=7)
    shown = api.get(f"/jobs/{job.pk}").json()
    assert (shown["state"], shown["phase"], shown["step"], shown["attempt"]) == ("running", "training", 7, 1)
    assert shown["started_at"] == "2026-01-05T12:00:00Z" and shown["finished_at"] is None
    assert shown["links"] == {
        "self": f"/api/v1/jobs/{job.pk}",
        "events": f"/api/v1/jobs/{job.pk}/events",
        "metrics": f"/api/v1/jobs/{job.pk}/metrics",
        "page": f"/jobs/{job.pk}/",
    }


def test_events_are_read_from_a_cursor(api: Any, job: Job, attempt: JobAttempt, now: datetime) -> None:
    for state, seconds in ((JobState.RUNNING, 1), (JobState.STOPPING, 2), (JobState.SUCCEEDED, 3)):
        change_state(job, state, actor="engine:1", now=now + timedelta(seconds=seconds))
    after, seen = 0, []
    while True:
        page = api.get(f"/jobs/{job.pk}/events", after=after, limit=2).json()
        seen += [(event["seq"], event["to_state"]) for event in page["data"]]
        after = page["next_after"]
        if not page["has_more"]:
            break
    assert seen == [(1, "queued"), (2, "starting"), (3, "running"), (4, "stopping"), (5, "succeeded")]
    assert api.get(f"/jobs/{job.pk}/events", after=5).json() == {"data": [], "has_more": False, "next_after": 5}


def test_attempts_are_shown_without_their_tokens(api: Any, job: Job, attempt: JobAttempt) -> None:
    [shown] = api.get(f"/jobs/{job.pk}/attempts").json()["data"]
    assert (shown["n"], shown["fence"], shown["ended_at"]) == (1, 1, None)
    assert shown["submission_id"].startswith(f"{job.pk}-1-1-")
    assert attempt.token_sha256 not in str(shown)
