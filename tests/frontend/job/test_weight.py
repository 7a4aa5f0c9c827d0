"""The transferred size of a job's page: the document with its initial data, and the next pull."""

import random
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from django.db import transaction
from django.test import Client

from backend.jobs.lifecycle import locked_job, next_cursor
from backend.jobs.models import Job
from backend.pages.job.panels.charts import CHARTS
from backend.pages.job.tabs import TABS
from backend.telemetry.series.points import NewPoint, store_points
from tests.frontend import seed
from tests.frontend.seed import World

MOST_BYTES: Final = 150_000
NUM_STEPS: Final = 1_500


def noisy(job: Job, rng: random.Random) -> None:
    """All drawn series, at every step, with incompressible values."""
    begun = datetime.now(UTC) - timedelta(seconds=NUM_STEPS)
    names = {key for chart in CHARTS for key in chart.keys}
    with transaction.atomic():
        locked = locked_job(job.pk)
        cursor = next_cursor(locked)
        store_points(
            locked,
            1,
            [
                NewPoint(name=name, step=step, at=begun + timedelta(seconds=step), value=rng.random(), cursor=cursor)
                for step in range(job.step + 1, NUM_STEPS + 1)
                for name in sorted(names)
            ],
        )
        Job.objects.filter(pk=job.pk).update(step=NUM_STEPS)


@pytest.mark.long
def test_the_document_and_its_first_data_are_small_on_the_wire(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=2, training={"steps": 5_000})
    noisy(job, random.Random(5))
    job.refresh_from_db()
    zipped = {"Accept-Encoding": "gzip"}
    pull = owner.get(f"/jobs/{job.pk}/live?after={job.cursor}", headers=zipped)
    for tab in TABS:
        page = owner.get(f"/jobs/{job.pk}/{tab.path}", headers=zipped)
        assert page["Content-Encoding"] == "gzip"
        assert len(page.content) + len(pull.content) <= MOST_BYTES, tab.title
