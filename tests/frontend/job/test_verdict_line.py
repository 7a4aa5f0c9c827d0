"""The verdict line of a job's page: on arrival, by pull, and its precedence over tones."""

import re
from html import unescape
from typing import Any
from urllib.parse import unquote

import pytest
from django.test import Client
from django.urls import reverse
from playwright.sync_api import expect

from backend.jobs.models import Job
from backend.pages.job.tabs import tabs_of
from backend.verdicts.models import JobVerdict
from tests.frontend import seed
from tests.frontend.seed import World
from tests.frontend.test_browser import ARRIVES_WITHIN_MS, Visit


def page_of(owner: Client, job: Job, query: str = "") -> str:
    return owner.get(f"/jobs/{job.pk}/{query}").content.decode()


def pulled(owner: Client, job: Job) -> dict[str, Any]:
    return dict(owner.get(f"/jobs/{job.pk}/live?after={job.cursor}").json())


def line_of(html: str) -> str:
    [line] = re.findall(r'<section class="verdict\b.*?</section>', html, re.S)
    return str(line)


def events_of(html: str) -> str:
    [events] = re.findall(r'<section class="card events".*?</section>', html, re.S)
    return str(events)


@pytest.mark.long
@pytest.mark.django_db
def test_a_run_that_learns_says_so_with_its_curve(world: World, owner: Client) -> None:
    job = seed.judged(seed.running(world, steps_done=50))
    line = line_of(page_of(owner, job))
    assert 'data-tone="good"' in line and "Learning: the reward rose from" in line
    assert '<a href="#chart-reward">' in line and "<polyline" in line
    assert line.index("<polyline") > line.index("Learning")


@pytest.mark.long
@pytest.mark.django_db
def test_what_shows_it_leads_to_a_chart_that_stands_there(world: World, owner: Client) -> None:
    job = seed.doubted(world)
    for tab in tabs_of(job):
        here = reverse(tab.page, args=[job.pk])
        line = line_of(owner.get(here).content.decode())
        led_to = re.findall(r'<a href="([^"#]*)#([\w-]+)">', line)
        assert led_to
        for path, chart in led_to:
            assert f'id="{chart}"' in owner.get(path or here).content.decode(), (tab, path, chart)


@pytest.mark.django_db
def test_evidence_without_chart_links_to_series_search(world: World, owner: Client) -> None:
    job = seed.doubted(world)
    row = JobVerdict.objects.get(job=job)
    row.found[0]["evidence"] = [{"series": "samples/failed", "points": [[1, 0.0], [2, 3.0]]}]
    row.save()
    [address] = re.findall(r'<a href="([^"]+#every-series)">', line_of(page_of(owner, job)))
    assert unquote(address) == f"/jobs/{job.pk}/metrics/?matching=^samples/failed$#every-series"
    assert 'id="every-series"' in owner.get(address).content.decode()


@pytest.mark.django_db
def test_alarm_shows_remedy_and_overrides_good_tone(world: World, owner: Client) -> None:
    job = seed.doubted(world)
    html = page_of(owner, job)
    line = unescape(line_of(html))
    assert "does not trust 50 % of its own rewards" in line and "Read a few untrusted answers" in line
    assert 'data-held-out data-tone="ill"' in html
    assert pulled(owner, job)["tiles"]["held_out"]["tone"] == "ill"
    assert html.index('id="verdict"') < html.index('class="vitals')


@pytest.mark.long
@pytest.mark.django_db
def test_pull_reports_new_verdict_and_part_has_it(world: World, owner: Client) -> None:
    job = seed.judged(seed.running(world, steps_done=30))
    html = page_of(owner, job)
    [stands] = re.findall(r'data-verdict="(\w+)"', html)
    assert pulled(owner, job)["verdict"] == stands
    for step in range(31, 45):
        seed.trained(world, job, step, untrusted=0.5)
    seed.judged(job)
    part = page_of(owner, job, "?part=verdict")
    assert pulled(owner, job)["verdict"] != stands
    assert re.findall(r'data-verdict="(\w+)"', part) == [pulled(owner, job)["verdict"]]
    assert "does not trust" in part and "<h1" not in part


@pytest.mark.django_db
def test_before_it_is_judged_a_job_has_no_line(world: World, owner: Client) -> None:
    assert "verdict-line" not in line_of(page_of(owner, seed.submitted(world)))


@pytest.mark.long
@pytest.mark.django_db
def test_alarm_is_a_word_in_list_and_a_sentence_in_events(world: World, owner: Client) -> None:
    job = seed.doubted(world)
    seed.judged(seed.running(world, steps_done=30))
    html = owner.get("/jobs/").content.decode()
    assert re.findall(r'class="why alarm">([^<]+)<', html) == ["rewards not trusted"]
    assert "does not trust" in events_of(page_of(owner, job))


@pytest.mark.django_db
def test_what_a_later_release_found_is_told_too(world: World, owner: Client) -> None:
    job = seed.doubted(world)
    row = JobVerdict.objects.get(job=job)
    row.alarms = ["haunted"]
    row.kind = row.found[0]["kind"] = "haunted"
    row.found[0]["sentence"] = "Haunted by another job."
    row.save()
    assert 'class="why alarm">haunted<' in owner.get("/jobs/").content.decode()
    assert "Haunted by another job." in unescape(line_of(page_of(owner, job)))


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_an_open_page_hears_of_an_alarm_by_itself(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.judged(seed.running(world, steps_done=30))
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/")
    expect(page.locator("#verdict .sentence")).to_contain_text("Learning")
    for step in range(31, 45):
        seed.trained(world, job, step, untrusted=0.5)
    seed.judged(job)
    expect(page.locator("#verdict .sentence")).to_contain_text("does not trust", timeout=ARRIVES_WITHIN_MS)
    expect(page.locator("[data-verdict-said]")).to_have_text("rewards not trusted")
    assert page.locator("[data-held-out]").get_attribute("data-tone") == "ill"
    assert not visitor.complaints
