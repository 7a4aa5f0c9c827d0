"""The form of a new job, as the page shows it and as a browser sends it."""

from urllib.parse import urlencode

from django.test import Client

from backend.pages.forms import JobForm
from engine.spec.job import JobSpec
from tests.frontend.html_reading import Answer
from tests.frontend.seed import World

TOKEN = "t" * 32


def send(client: Client, form: dict[str, str]) -> Answer:
    """As a browser sends it."""
    return client.post("/jobs/new", urlencode(form), content_type="application/x-www-form-urlencoded")


def filled(world: World, **changes: str) -> dict[str, str]:
    """The form as the page shows it, with some fields typed over."""
    shown = JobForm.showing(JobSpec(name="Sums")).texts
    target = f"{world.project.pk}/{world.pool.pk}"
    return {**shown, "target": target, "token": TOKEN} | {
        key.replace("__", "."): value for key, value in changes.items()
    }
