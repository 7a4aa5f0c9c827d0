"""The tabs of a job's page: each has an address, loads what it shows, and stays up to date."""

import json
import re
from datetime import UTC, datetime

import pytest
from django.test import Client
from django.urls import reverse
from playwright.sync_api import expect

from backend.jobs.models import Job, JobState
from backend.pages.job.panels.charts import CHARTS
from backend.pages.job.tabs import TABS, Tab
from backend.verdicts.models import JobVerdict
from tests.frontend import seed
from tests.frontend.html_reading import text_of
from tests.frontend.seed import World
from tests.frontend.test_browser import ARRIVES_WITHIN_MS, Visit

TRAINS = [tab for tab in TABS if tab.only_trains]


def address(tab: Tab, job: Job) -> str:
    return reverse(tab.page, args=[job.pk])


@pytest.mark.parametrize("tab", TABS, ids=lambda tab: tab.title)
def test_a_tab_says_which_it_is_and_leads_to_the_others(world: World, owner: Client, tab: Tab) -> None:
    job = seed.running(world, steps_done=3)
    page = text_of(owner.get(address(tab, job)))
    assert re.findall(r'<a href="([^"]+)" aria-current="page">', page)[-1] == address(tab, job)
    assert all(f'href="{address(each, job)}"' in page for each in TABS)
    assert page.count("<h1") == 1 and job.name in page


def test_a_tab_brings_what_it_shows_and_no_more(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=30)
    for tab in TABS:
        page = text_of(owner.get(address(tab, job)))
        seeded = re.findall(r'<script id="live-seed" type="application/json">(.*?)</script>', page, re.S)
        series = json.loads(seeded[0])["series"]
        assert bool(series) == ("data-plot" in page) == ("plotly" in page) == (tab.slug in ("", "metrics")), tab.title
        assert ("<article" in page) == (tab.slug == "trajectories")
        assert ('id="region-checkpoints"' in page) == (tab.slug == "checkpoints")
        assert len(series) < 5 or tab.slug == "metrics"


@pytest.mark.long_except("Faults", "Config")
@pytest.mark.parametrize("tab", TABS, ids=lambda tab: tab.title)
def test_what_an_open_tab_asks_for_again_is_in_it(world: World, owner: Client, tab: Tab) -> None:
    job = seed.failed_with_evidence(world, at=datetime.now(UTC))
    shown = set(re.findall(r'id="(region-\w+)" data-region', text_of(owner.get(address(tab, job)))))
    renewed = set(re.findall(r'id="(region-\w+)" data-region', text_of(owner.get(address(tab, job) + "?part"))))
    assert shown == renewed >= {"region-head"}


@pytest.mark.long
def test_whatever_shows_a_verdict_leads_to_its_chart(world: World, owner: Client) -> None:
    job = seed.judged(seed.running(world, steps_done=50))
    row = JobVerdict.objects.get(job=job)
    points = [[step, 0.5] for step in range(3)]
    drawn = [trace.key for chart in CHARTS for trace in chart.traces]
    row.found[0]["evidence"] = [{"series": key, "points": points} for key in drawn]
    row.save()
    for tab in TABS:
        here = address(tab, job)
        [line] = re.findall(r'<section class="verdict\b.*?</section>', text_of(owner.get(here)), re.S)
        led = re.findall(r'<a href="([^"#]*)#(chart-\w+)"', line)
        assert len(led) == len(drawn)
        for path in {path for path, _ in led}:
            there = text_of(owner.get(path or here))
            assert all(f'id="{chart}"' in there for to, chart in led if to == path), (tab.title, path)


def test_an_evaluation_has_no_tab_that_would_be_empty(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=1)
    Job.objects.filter(pk=job.pk).update(steps=0)
    page = text_of(owner.get(f"/jobs/{job.pk}/"))
    for tab in TRAINS:
        assert f'href="{address(tab, job)}"' not in page
        assert owner.get(address(tab, job))["Location"] == f"/jobs/{job.pk}/"


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("tab", TABS, ids=lambda tab: tab.title)
@pytest.mark.parametrize("width", [1280, 390])
def test_every_tab_goes_on_by_itself(visit: Visit, tab: Tab, width: int) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=3)
    visitor = visit(world.owner, width=width)
    page = visitor.open(address(tab, job))
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    expect(page.locator(".tabs [aria-current]")).to_be_in_viewport(ratio=1)
    seed.trained(world, job, 4)
    expect(page.locator("[data-value=done]").first).to_have_text("4", timeout=ARRIVES_WITHIN_MS)
    seed.ended(job, JobState.SUCCEEDED, message="Done.")
    expect(page.locator(".job-head .chip")).to_have_text("succeeded", timeout=ARRIVES_WITHIN_MS)
    assert page.title().startswith("succeeded · ") and page.title().endswith(tab.title) == bool(tab.slug)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert not visitor.complaints


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_tabs_are_reached_by_keyboard(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=3)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/")
    page.get_by_role("navigation", name="Job", exact=True).get_by_role("link", name="Overview").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/metrics/")
    assert not visitor.complaints
