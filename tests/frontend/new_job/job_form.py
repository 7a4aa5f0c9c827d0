"""The new-job form: its fields, and submission as by a browser."""

from urllib.parse import urlencode

from django.test import Client

from backend.pages.new_job.forms import JobForm
from engine.spec.job import JobSpec
from tests.frontend.html_reading import Answer
from tests.frontend.seed import World

TOKEN = "t" * 32


def send(client: Client, form: dict[str, str]) -> Answer:
    """Submits the form as a browser does."""
    return client.post("/jobs/new", urlencode(form), content_type="application/x-www-form-urlencoded")


def filled(world: World, **changes: str) -> dict[str, str]:
    """The form's initial values, with some fields changed."""
    shown = JobForm.showing(JobSpec(name="Sums")).texts
    target = f"{world.project.pk}/{world.pool.pk}"
    return {**shown, "target": target, "token": TOKEN} | {
        key.replace("__", "."): value for key, value in changes.items()
    }
