"""Control requests to a job's driver."""

from datetime import datetime

from backend.jobs.control_requests import (
    acknowledge_request,
    ask_driver,
    close_requests,
    jobs_with_requests,
    open_requests,
)
from backend.jobs.models import Job


def wanted(job: Job) -> list[tuple[str, int | None]]:
    return list(open_requests().filter(job=job).order_by("kind").values_list("kind", "replicas"))


def test_same_request_again_is_a_no_op(job: Job, now: datetime) -> None:
    for _ in range(2):
        ask_driver(job, "pause", now=now)
        ask_driver(job, "resize", replicas=3, now=now)
    assert job.requests.count() == 2 and wanted(job) == [("pause", None), ("resize", 3)]


def test_newer_resize_replaces_older(job: Job, now: datetime) -> None:
    ask_driver(job, "resize", replicas=3, now=now)
    ask_driver(job, "resize", replicas=2, now=now)
    assert job.requests.count() == 2 and wanted(job) == [("resize", 2)]


def test_acknowledged_request_can_be_repeated(job: Job, now: datetime) -> None:
    ask_driver(job, "pause", now=now)
    (first,) = open_requests()
    assert acknowledge_request(job, first.pk, now=now) and not acknowledge_request(job, first.pk, now=now)
    assert jobs_with_requests([job.pk]) == set()
    ask_driver(job, "pause", now=now)
    assert wanted(job) == [("pause", None)] and jobs_with_requests([job.pk]) == {job.pk}


def test_requests_are_closed_by_kind_or_all_at_once(job: Job, now: datetime) -> None:
    ask_driver(job, "cancel", now=now)
    ask_driver(job, "pause", now=now)
    ask_driver(job, "resize", replicas=1, now=now)
    close_requests(job.pk, kind="resize", now=now)
    assert wanted(job) == [("cancel", None), ("pause", None)]
    close_requests(job.pk, now=now)
    assert wanted(job) == []
