"""Numbers that only a hostile node reports: every page of the team still opens."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from backend.errors import Invalid
from backend.jobs.models import Job
from backend.pages.job.tabs import TABS
from backend.telemetry.intake.ingest import ingest_facts
from backend.telemetry.series.thinned import thinned_metrics
from backend.verdicts import judging, observations
from backend.verdicts.judging import judge_due, judge_job
from backend.verdicts.models import JobVerdict
from engine.spec.control import FactBatch
from tests.frontend import seed
from tests.frontend.seed import World

LARGEST = 1.7e308
MOST = 2**31 - 1


def report(job: Job, *bodies: dict[str, Any]) -> None:
    attempt = job.attempts.get()
    now = datetime.now(UTC)
    for start in range(0, len(bodies), 100):
        some = bodies[start : start + 100]
        attempt.refresh_from_db()
        facts = [{"seq": attempt.acked_seq + n, "at": now, "body": body} for n, body in enumerate(some, start=1)]
        batch = FactBatch.model_validate({"attempt": attempt.n, "fence": attempt.fence, "facts": facts})
        ingest_facts(attempt, batch, now=now)
    job.refresh_from_db()


def assert_pages_open(client: Client, job: Job) -> None:
    judge_job(job, now=datetime.now(UTC))
    for path in ("/", "/jobs/", "/usage/", *(reverse(tab.page, args=[job.pk]) for tab in TABS)):
        assert client.get(path).status_code == 200, path
    for query in ("", "?times=1&max_points=2", "?to_step=9223372036854775807&max_points=2000"):
        answer = client.get(reverse("job_series", args=[job.pk]) + query)
        assert answer.status_code == 200 and b"Infinity" not in answer.content
    for size in (2, 500):
        assert thinned_metrics(job, size, times=True).series
    assert client.get(reverse("job_live", args=[job.pk]) + "?after=0").status_code == 200


def trained(step: int, value: float) -> dict[str, Any]:
    metrics = {"reward/mean": value, "length/mean": value, "throughput/tokens_per_s": value, "trainer/step_s": value}
    return {"type": "step_trained", "step": step, "metrics": metrics | {"made/up": value}}


def evaluated(version: int, value: float) -> dict[str, Any]:
    rewards = {"reward_mean": value, "reward_std": abs(value), "length_mean": value, "reward_error": abs(value)}
    return {"type": "evaluated", "version": version, "num_prompts": MOST, "num_samples": 65_536} | rewards


@pytest.mark.long
@pytest.mark.parametrize("value", [LARGEST, -LARGEST, 5e-324])
def test_extreme_values_and_steps_leave_pages_open(world: World, owner: Client, value: float) -> None:
    job = seed.running(world, steps_done=2)
    report(job, *(trained(step, value) for step in range(3, 1_200)))
    assert_pages_open(owner, job)
    report(job, trained(MOST, value), trained(1, -value), *(evaluated(each, value) for each in (0, 1, MOST)))
    assert_pages_open(owner, job)


@pytest.mark.long
def test_evaluations_of_forged_versions_leave_pages_open(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=2)
    report(job, *(evaluated(version, 0.5) for version in range(600)))
    for version in (2**31, 2**62, 2**63 - 1):
        try:
            report(job, evaluated(version, 0.5))
        except (Invalid, ValueError):
            continue
    assert_pages_open(owner, job)


def test_job_that_cannot_be_judged_stops_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs of all teams are judged one after the other, those without a verdict first."""
    odd, fine = seed.running(world, steps_done=1), seed.running(world, steps_done=1)

    def overflow(job: Job, *arguments: Any, **options: Any) -> Any:
        if job.pk == odd.pk:
            raise OverflowError
        return observations.observed_of(job, *arguments, **options)

    monkeypatch.setattr(judging, "observed_of", overflow)
    judge_due(now=datetime.now(UTC))
    assert list(JobVerdict.objects.values_list("job_id", flat=True)) == [fine.pk]
