"""GET /jobs."""

from datetime import datetime, timedelta
from typing import Any

from backend.accounts.models import User
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.models import JobState


def test_pages_are_newest_first_without_duplicates_or_gaps(api: Any, make_job: Any, now: datetime) -> None:
    ids = [make_job(at=now + timedelta(seconds=n // 3)).pk for n in range(7)]  # several share a timestamp
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = api.get("/jobs", limit=2, **cursor).json()
        seen += [job["id"] for job in page["data"]]
        make_job(at=now + timedelta(hours=1))  # new jobs do not shift the pages
        if not page["has_more"]:
            assert page["next_cursor"] is None
            break
        cursor = {"cursor": page["next_cursor"]}
    assert sorted(seen) == sorted(ids) and len(set(seen)) == 7
    assert [ids.index(job) // 3 for job in seen] == [2, 1, 1, 1, 0, 0, 0]


def test_states_and_project_narrow_the_list(api: Any, make_job: Any, now: datetime) -> None:
    first, second = make_job(), make_job()
    cancel_job(first.pk, actor="user:1", now=now)
    ids = {state: [job["id"] for job in api.get("/jobs", state=state).json()["data"]] for state in JobState.values}
    assert (ids["cancelled"], ids["queued"], ids["running"]) == ([first.pk], [second.pk], [])
    assert len(api.get("/jobs", state=["cancelled", "queued"]).json()["data"]) == 2
    assert len(api.get("/jobs", project=first.project_id).json()["data"]) == 2
    assert api.get("/jobs", project="proj_other").json()["data"] == []


def test_another_teams_jobs_are_not_listed(api_of: Any, charlie: User, bob: User, make_job: Any) -> None:
    job = make_job()
    assert api_of(charlie).get("/jobs").json() == {"data": [], "has_more": False, "next_cursor": None}
    assert api_of(charlie).get("/jobs", project=job.project_id).json()["data"] == []
    assert [row["id"] for row in api_of(bob).get("/jobs").json()["data"]] == [job.pk]


def test_query_count_is_independent_of_list_length(api: Any, make_job: Any, django_assert_max_num_queries: Any) -> None:
    for _ in range(5):
        make_job()
    with django_assert_max_num_queries(4):
        assert len(api.get("/jobs").json()["data"]) == 5
