"""The pages in a real Chromium, served by a real server process, on a real Postgres.

Every test ends with the same demand: no error in the console, no violation of the content security policy.
"""

import json
import re
import signal
import time
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from playwright.sync_api import Page, expect

from backend.jobs.models import Job, JobState
from backend.pages.charts import CHARTS, HELD_OUT
from tests.frontend import seed
from tests.frontend.conftest import Visitor

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

Visit = Callable[..., Visitor]
ARRIVES_WITHIN_MS = 8_000


def width_of(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth"))


def see_everything(page: Page) -> None:
    """Scrolled through once, so that every chart was visible."""
    page.evaluate(
        "async () => { for (let y = 0; y < document.body.scrollHeight; y += 400) "
        "{ scrollTo(0, y); await new Promise((done) => setTimeout(done, 60)); } scrollTo(0, 0); }"
    )


def eventually(page: Page, expression: str, wanted: Any = True) -> None:  # whatever the page says
    """Playwright's own wait_for_function needs eval, which the page's policy forbids."""
    deadline = time.monotonic() + ARRIVES_WITHIN_MS / 1_000
    while (found := page.evaluate(expression)) != wanted:
        assert time.monotonic() < deadline, f"{expression} stayed {found!r}"
        page.wait_for_timeout(100)


def drawn_points(page: Page) -> list[list[int]]:
    return page.evaluate(  # type: ignore[no-any-return]  # what this script gives
        "[...document.querySelectorAll('[data-plot]')].map((p) => (p.data ?? []).map((t) => t.x.length))"
    )


def test_signing_in_leads_to_the_jobs(visit: Visit) -> None:
    world = seed.make_world()
    seed.may_sign_in(world.owner)
    seed.submitted(world, name="Hello")
    visitor = visit()
    page = visitor.open("/jobs/")
    page.get_by_label("E-mail").fill(world.owner.email)
    page.get_by_label("Password").fill(seed.PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Hello")).to_be_visible()
    assert not visitor.complaints


def test_a_jobs_page_draws_every_chart(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=30)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/")
    see_everything(page)
    expect(page.locator(".plot .main-svg").first).to_be_attached()
    eventually(page, "[...document.querySelectorAll('[data-plot]')].every((p) => p.data?.length > 0)")
    expected = [[1 if trace.key == HELD_OUT else 30 for trace in chart.traces] for chart in CHARTS]
    assert drawn_points(page) == expected
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    page.get_by_role("button", name="What staleness means").click()
    expect(page.get_by_text("0 is on-policy.")).to_be_visible()
    assert not visitor.complaints


def test_charts_that_nobody_sees_are_not_drawn(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=5)
    visitor = visit(world.owner, width=390)
    page = visitor.open(f"/jobs/{job.pk}/")
    eventually(page, "document.querySelector('[data-plot]').data?.length > 0")
    assert page.evaluate("[...document.querySelectorAll('[data-plot]')].at(-1).data") is None
    assert not visitor.complaints


def test_a_new_point_arrives_without_a_reload(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=12)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/")
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    page.evaluate("window.sameDocument = true")
    seed.trained(world, job, 13, reward=0.97)
    expect(page.locator("[data-value=done]").first).to_have_text("13", timeout=ARRIVES_WITHIN_MS)
    expect(page.locator("[data-value=reward]")).to_have_text("0.97")
    expect(page.locator("[data-reading-step]")).to_have_text("Step 13")
    eventually(page, "document.querySelector('[data-chart=reward] [data-plot]').data[0].x.at(-1) === 13")
    assert page.evaluate("window.sameDocument")
    assert page.title().startswith("13/120")
    assert not visitor.complaints


def test_whoever_reads_an_older_step_is_not_pulled_away(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=6)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/")
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    page.get_by_role("button", name="Older").click()
    expect(page.locator("[data-reading-step]")).to_have_text("Step 5")
    seed.trained(world, job, 7)
    expect(page.locator("[data-value=done]").first).to_have_text("7", timeout=ARRIVES_WITHIN_MS)
    expect(page.locator("[data-reading-step]")).to_have_text("Step 5")
    page.get_by_label("follow the newest").check()
    expect(page.locator("[data-reading-step]")).to_have_text("Step 7")
    assert not visitor.complaints


def test_the_state_and_its_event_arrive_too(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=3)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/")
    expect(page.locator(".job-head .chip")).to_have_text("running")
    seed.ended(job, JobState.FAILED, message="reward: division by zero", failure_class="reward")
    expect(page.locator(".job-head .chip")).to_have_text("failed", timeout=ARRIVES_WITHIN_MS)
    expect(page.locator(".failure")).to_contain_text("division by zero")
    expect(page.locator("#region-events")).to_contain_text("stopping → failed")
    expect(page.get_by_role("link", name="Cancel job")).to_have_count(0)
    assert not visitor.complaints


def test_after_the_server_was_gone_the_page_catches_up(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=4)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/")
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    visitor.server.stop(signal.SIGKILL)
    expect(page.locator("[data-connection-words]")).to_have_text("offline since", timeout=ARRIVES_WITHIN_MS)
    seed.trained(world, job, 5)
    seed.trained(world, job, 6)
    visitor.server.start()
    expect(page.locator("[data-value=done]").first).to_have_text("6", timeout=40_000)
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    eventually(page, "document.querySelector('[data-chart=reward] [data-plot]').data[0].x.join() === '1,2,3,4,5,6'")
    visitor.complaints.clear()  # the browser itself reports the refused connections


def test_the_list_follows_by_itself(visit: Visit) -> None:
    world = seed.make_world()
    visitor = visit(world.owner)
    page = visitor.open("/jobs/")
    expect(page.get_by_role("link", name="Try the demo")).to_be_visible()
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    job = seed.running(world, steps_done=2, name="Just begun")
    expect(page.get_by_role("link", name="Just begun")).to_be_visible(timeout=ARRIVES_WITHIN_MS)
    seed.trained(world, job, 3)
    expect(page.locator(f"#{job.pk} .progress")).to_contain_text("3/120", timeout=ARRIVES_WITHIN_MS)
    assert not visitor.complaints


@pytest.mark.parametrize("path", ["/jobs/", "/jobs/{job}/"])
def test_a_page_whose_session_has_ended_says_so(visit: Visit, path: str) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=2)
    visitor = visit(world.owner)
    page = visitor.open(path.format(job=job.pk))
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    Session.objects.all().delete()
    seed.trained(world, job, 3)
    expect(page.locator("[data-connection-words]")).to_have_text("signed out: reload", timeout=ARRIVES_WITHIN_MS)
    assert not [said for said in visitor.complaints if not re.search("401|403", said)]  # the browser's own reports


def test_cancelling_by_keyboard(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=2)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/")
    cancel = page.get_by_role("link", name="Cancel job")
    cancel.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.get_by_role("button", name="Keep it")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(cancel).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".job-head .chip")).to_have_text("stopping")
    assert Job.objects.get().target_state == JobState.CANCELLED
    assert not visitor.complaints


def test_every_error_at_once_and_then_one_job(visit: Visit) -> None:
    world = seed.make_world()
    visitor = visit(world.owner)
    page = visitor.open("/jobs/new")
    page.get_by_label("Name").fill("")
    page.get_by_label("Steps", exact=True).fill("many")
    page.locator("#f-optimizer-learning_rate").fill("7")
    expect(page.locator("#curl")).to_contain_text('"learning_rate": 7')
    page.get_by_role("button", name="Submit job").click()
    expect(page.locator("#summary")).to_be_focused()
    expect(page.locator(".field.wrong")).to_have_count(3)
    visitor.complaints = [said for said in visitor.complaints if "422" not in said]  # the browser reports the answer
    page.get_by_role("link", name="Steps", exact=True).click()
    expect(page.get_by_label("Steps", exact=True)).to_be_focused()
    page.keyboard.type("40")
    page.get_by_label("Steps", exact=True).fill("40")
    page.get_by_label("Name").fill("It's <b>mine</b>")
    page.locator("#f-optimizer-learning_rate").fill("1e-3")
    page.get_by_role("button", name="Submit job").dblclick()
    expect(page.get_by_role("heading", name="It's <b>mine</b>")).to_be_visible()
    assert Job.objects.get().spec["training"]["steps"] == 40
    assert not visitor.complaints


def test_the_curl_of_the_page_is_the_curl_of_the_server(visit: Visit) -> None:
    world = seed.make_world()
    visitor = visit(world.owner)
    typed = visitor.open("/jobs/new").locator("#curl").text_content() or ""
    served = re.search(r'id="curl">(.*?)</code>', visitor.page.request.get("/jobs/new").text(), re.S)
    assert served
    calls = [typed, unescape(served[1])]
    bodies = [json.loads(call.split("-d '")[1].removesuffix("'")) for call in calls]
    assert bodies[0] == bodies[1]
    assert calls[0].split("\n")[1:4] == calls[1].split("\n")[1:4]
    assert not visitor.complaints


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wider_than_a_phone(visit: Visit, dark: bool) -> None:
    world = seed.make_world()
    running = seed.running(world, steps_done=6, name="<i>" + "w" * 90, tags=["x" * 40, "مرحبا"])
    running.trajectories.update(response="w" * 3_000, remark="<img src=x onerror=alert(1)>" + "y" * 300)
    failed = seed.failed(world, name="Short", message="/very/long/path/" * 40)
    visitor = visit(world.owner, width=390, dark=dark)
    for path in (
        "/jobs/",
        "/jobs/new",
        f"/jobs/{running.pk}/",
        f"/jobs/{running.pk}/cancel",
        f"/jobs/{failed.pk}/",
        "/help/",
    ):
        page = visitor.open(path)
        see_everything(page)
        assert width_of(page) == 390, path
    assert not visitor.complaints


def test_hostile_samples_are_text(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=3)
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    job.trajectories.update(response=hostile, prompt=hostile, remark=hostile)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/")
    page.get_by_role("button", name="Older").click()
    expect(page.locator(".sample .response").first).to_have_text(hostile)
    assert page.locator(".samples img, .samples script").count() == 0
    assert not visitor.complaints


def test_the_theme_follows_the_system_until_it_is_chosen(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=3)
    visitor = visit(world.owner, dark=True)
    page = visitor.open(f"/jobs/{job.pk}/")
    eventually(page, "document.querySelector('[data-plot]').data?.length > 0")
    background = "getComputedStyle(document.documentElement).backgroundColor"
    colours = f"[{background}, document.querySelector('[data-plot]').data[0].line.color]"
    dark = page.evaluate(colours)
    page.get_by_role("button", name="Theme: dark. Switch to light").click()
    eventually(page, f"{colours}[1] !== {dark[1]!r}")
    light = page.evaluate(colours)
    assert light[0] != dark[0]
    page.reload()
    assert page.evaluate(background) == light[0]  # at once: the charts may not be drawn yet
    assert not visitor.complaints


def test_without_scripts_the_page_still_tells_and_cancels(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=3)
    visitor = visit(world.owner, scripts=False)
    page = visitor.open(f"/jobs/{job.pk}/")
    expect(page.locator("[data-value=done]").first).to_have_text("3")
    page.get_by_role("link", name="Cancel job").click()
    page.get_by_role("button", name="Cancel job").click()
    expect(page.locator(".job-head .chip")).to_have_text("stopping")
