"""Hostile text in every column, on every page, in a real browser: none of it becomes markup, a script or a link."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from django.apps import apps
from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from playwright.sync_api import expect

from backend.accounts.models import Team
from backend.jobs.lifecycle import locked_job, record_event
from backend.jobs.models import Job
from tests.frontend import seed
from tests.frontend.conftest import Visitor, chromium, server, server_of_all, visit  # noqa: F401  # fixtures
from tests.frontend.test_browser import see_everything
from tests.gallery.exhibits import Exhibits
from tests.gallery.hostile import INERT, MARKS, ON_NO_PAGE, TEXTS, hostile, make_hostile_exhibits
from tests.gallery.looking import Wanderer, complaints_of
from tests.gallery.manifest import ENTRIES, Entry
from tests.waiting import eventually

SHOWN: Final = re.compile(r"(zq[0-9]{2}q)[0-9]*\"'><img src=x onerror=__hit\(")
"""A text of which each special character is there to read."""
ARM: Final = "window.__hits = []; window.__hit = () => window.__hits.push(1);"
READ: Final = (Path(__file__).parent / "hostile.js").read_text()


def _hostile_sample(exhibits: Exhibits) -> list[str]:
    job = exhibits.jobs["running"]
    return [job.pk, job.trajectories.filter(end="failed").latest("step", "pk").trajectory_id]


SAMPLE: Final = Entry(page="job_trajectory", state="hostile", of=_hostile_sample)


def test_every_text_column_is_hostile_or_inert() -> None:
    assert TEXTS.isdisjoint(INERT) and set(_columns()) == TEXTS | INERT


def _columns() -> Iterator[str]:
    """Every column that holds text, of our own models."""
    kinds = (models.CharField, models.TextField, models.JSONField, ArrayField)
    for model in apps.get_models():
        for column in model._meta.concrete_fields if model.__module__.startswith("backend.") else ():
            if isinstance(column, kinds) and not column.choices and not column.primary_key:
                yield f"{model._meta.label}.{column.name}"


@dataclass(slots=True)
class Reader:
    """Opens pages, and reads what they show."""

    visit: Callable[..., Visitor]
    has_policy: bool
    found: list[str] = field(default_factory=list)
    """What became more than text."""
    marks: set[str] = field(default_factory=set)
    """Of the texts that were there to read, with each special character."""

    def arrive(self, *arguments: Any, **options: Any) -> Visitor:
        visitor = self.visit(*arguments, **options)
        visitor.context.add_init_script(ARM)
        return visitor

    def read(self, visitor: Visitor, name: str) -> str:
        """Returns the page's text."""
        page = visitor.page.evaluate(READ)
        self.found += [f"{name}: {line}" for line in page["found"]]
        self.marks |= {match[1] for match in SHOWN.finditer(page["text"])}
        return str(page["text"])

    def read_all(self, entries: Sequence[Entry], exhibits: Exhibits) -> None:
        look = "light" if self.has_policy else "unprotected"
        wanderer = Wanderer(visit=self.arrive, exhibits=exhibits, visitors={})
        for entry in entries:
            try:
                visitor = wanderer.see(entry, look)
            except AssertionError as error:  # another status
                self.found.append(str(error).partition("\n")[0])
                continue
            see_everything(visitor.page)
            self.read(visitor, entry.name)
            self.found += [f"{entry.name}: the console shows {line}" for line in complaints_of(visitor, entry)]


@pytest.mark.soak
@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("has_policy", [False, True])
def test_hostile_text_stays_text_on_every_page(visit: Callable[..., Visitor], has_policy: bool) -> None:  # noqa: F811
    reader = Reader(visit=visit, has_policy=has_policy)
    reader.read_all([*ENTRIES, SAMPLE], make_hostile_exhibits())
    assert not reader.found, "\n".join(reader.found)
    unseen = {name for name, mark in MARKS.items() if mark not in reader.marks}
    assert unseen == ON_NO_PAGE, f"a text that no page shows proves nothing: {sorted(unseen ^ ON_NO_PAGE)}"


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_hostile_job_and_its_live_event_stay_text(visit: Callable[..., Visitor]) -> None:  # noqa: F811
    """Without the policy. The event arrives while the page is open: scripts show it."""
    world = seed.make_world()
    job = seed.running(world, steps_done=1)
    Job.objects.filter(pk=job.pk).update(name=hostile(MARKS["jobs.Job.name"], 120))
    Team.objects.update(name=hostile(MARKS["accounts.Team.name"], 80))
    reader = Reader(visit=visit, has_policy=False)
    visitor = reader.arrive(world.owner, has_policy=False)
    page = visitor.open(f"/jobs/{job.pk}/")
    expect(page.locator("[data-connection]")).to_have_attribute("data-state", "live")
    with transaction.atomic():
        message = hostile(MARKS["jobs.JobEvent.message"], 2_000)
        data = {"component": hostile(MARKS["jobs.JobEvent.data"], 100), "action": "restarts"}
        now = datetime.now(UTC)
        record_event(locked_job(job.pk), "fault_detected", actor="engine:1", now=now, message=message, data=data)
    mark = MARKS["jobs.JobEvent.message"]
    text = eventually(lambda: reader.read(visitor, "job"), "the event is shown", until=lambda shown: mark in shown,
                      pause=lambda seconds: page.wait_for_timeout(1_000 * seconds), every_s=0.2)  # fmt: skip
    assert "{{7*7}}" in text
    assert not reader.found
    assert reader.marks >= {MARKS[name] for name in ("jobs.Job.name", "accounts.Team.name", "jobs.JobEvent.message")}
