"""Usability in a real Chromium: no layout shifts, everything reachable by keyboard, immediate feedback."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from django.db import transaction
from playwright.sync_api import Locator, Page, expect

from backend.checkpoints.models import Checkpoint
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobState
from backend.jobs.queue.scheduling import schedule_pool
from backend.pages.job.panels.charts import CHARTS
from backend.webhooks.models import WebhookEndpoint
from tests.frontend import seed
from tests.frontend.job.driver_facts import saved
from tests.frontend.test_browser import ARRIVES_WITHIN_MS, Visit, expect_value, see_everything

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

HERE: Final = Path(__file__).parent
WATCH_MOVES, FOCUSED = ((HERE / name).read_text() for name in ("watch_moves.js", "focused.js"))
MOST_MOVED: Final = 0.02
"""The browser's layout-shift score: the share of the screen that moved, times the distance."""


def moved(page: Page) -> list[dict[str, Any]]:
    return page.evaluate("moves")  # type: ignore[no-any-return]  # what this script gives


def begun(job: Job, world: seed.World) -> None:
    """Starts the queued job and its engine."""
    now = datetime.now(UTC)
    schedule_pool(world.pool.pk, now=now)
    with transaction.atomic():
        data = {"num_replicas": 2, "num_parameters": 262_144}
        change_state(locked_job(job.pk), JobState.RUNNING, actor="engine:1", now=now, phase="training", data=data)


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_moves_while_a_run_begins_goes_on_and_ends(visit: Visit, width: int) -> None:
    world = seed.make_world()
    job = seed.submitted(world, training={"steps": 60})
    visitor = visit(world.owner, width=width)
    visitor.context.add_init_script(WATCH_MOVES)
    page = visitor.open(f"/jobs/{job.pk}/")
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    chip, done = page.locator(".job-head .chip"), page.locator("[data-value=done]").first
    begun(job, world)
    expect(chip).to_have_text("running", timeout=ARRIVES_WITHIN_MS)
    seed.evaluated(job, version=0, reward=0.3, at=datetime.now(UTC))
    for first, last in ((1, 2), (3, 41), (42, 60)):
        with transaction.atomic():
            for step in range(first, last + 1):
                seed.trained(world, job, step)
        seed.judged(job)
        expect(done).to_have_text(str(last), timeout=ARRIVES_WITHIN_MS)
    expect(page.locator("#verdict .sentence")).to_be_visible(timeout=ARRIVES_WITHIN_MS)
    seed.ended(job, JobState.SUCCEEDED, message="All 60 steps are done.")
    expect(chip).to_have_text("succeeded", timeout=ARRIVES_WITHIN_MS)
    expect(page.locator("#region-events")).to_contain_text("succeeded")
    found = moved(page)
    assert sum(each["value"] for each in found) <= MOST_MOVED, "\n".join(map(str, found))
    page.evaluate("document.querySelector('main').style.paddingTop = '40vh'")
    expect_value(page, f"moves.length > {len(found)}")  # the measurement works


@pytest.mark.long
@pytest.mark.parametrize("tab", ["", "metrics/"])
def test_charts_keep_their_places_while_the_page_arrives(visit: Visit, tab: str) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=5)
    page = visit(world.owner).open(f"/jobs/{job.pk}/{tab}")
    third = page.locator("[data-chart]").nth(2)
    whole = third.bounding_box()
    page.evaluate("[...document.querySelectorAll('[data-chart]')].slice(3).forEach((chart) => chart.remove())")
    assert third.bounding_box() == whole


@pytest.mark.long
def test_phone_shows_important_parts_first_and_is_short(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.judged(seed.running(world, steps_done=50))
    page = visit(world.owner, width=390).open(f"/jobs/{job.pk}/")
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    tops = [
        page.locator(each).first.evaluate("(each) => each.getBoundingClientRect().top + scrollY")
        for each in (
            ".job-head h1",
            ".job-head .chip",
            "#verdict .sentence",
            ".vitals",
            "[data-chart=reward]",
            ".events",
        )
    ]
    assert tops == sorted(tops)
    assert tops[2] < 422 and tops[3] < 844 and tops[4] < 2 * 844, (
        "the verdict is in the first half of the screen, the numbers on the first, the reward chart on the second"
    )
    assert page.evaluate("document.documentElement.scrollHeight") <= 2_600


@pytest.mark.long
def test_a_second_look_asks_for_hardly_any_file_again(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=12)
    visitor = visit(world.owner)
    for path in (f"/jobs/{job.pk}/", "/jobs/", f"/jobs/{job.pk}/"):
        page = visitor.open(path)
        page.wait_for_load_state("load")
    expect_value(page, "document.querySelector('[data-chart=reward] .main-svg') !== null")
    files = "performance.getEntriesByType('resource').filter(({ name }) => name.includes('/static/'))"
    assert page.evaluate(f"{files}.length") > 20
    assert page.evaluate(f"{files}.reduce((sum, {{ transferSize }}) => sum + transferSize, 0)") <= 30_000


@pytest.mark.long
def test_every_chart_is_read_as_a_table_by_keys_alone(visit: Visit) -> None:
    """The rows are the drawn points, each with its step and the name of its line."""
    world = seed.make_world()
    job = seed.running(world, steps_done=12)
    page = visit(world.owner).open(f"/jobs/{job.pk}/metrics/")
    see_everything(page)
    expect_value(page, "[...document.querySelectorAll('[data-plot]')].every((plot) => plot.data?.length > 0)")
    for chart in CHARTS:
        panel = page.locator(f"[data-chart={chart.slug}]")
        wanted = sum(panel.locator("[data-plot]").evaluate("(plot) => plot.data.map(({ x }) => x.length)"))
        save, table = (
            panel.get_by_role("button", name=re.compile("^Save")),
            page.get_by_role("dialog").get_by_role("table"),
        )
        save.focus()
        page.keyboard.press("Enter")
        pressed_until(page, panel.get_by_role("button", name="As a table"))
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_have_accessible_name(re.compile(f"^{re.escape(chart.title)}"))
        expect(table.get_by_role("row")).to_have_count(1 + wanted)
        expect(table.get_by_role("rowheader")).to_have_count(wanted)
        expect(table.get_by_role("row").last).to_contain_text(
            re.compile("|".join(re.escape(each.label) for each in chart.traces))
        )
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(save).to_be_focused()


def pressed_until(page: Page, wanted: Locator) -> None:
    """The next few elements that take the focus."""
    for _ in range(6):
        page.keyboard.press("Tab")
        if wanted.evaluate("(each) => each === document.activeElement"):
            return
    raise AssertionError(f"{wanted} is not among the next six things that the keys come to")


@pytest.mark.long
def test_toast_shows_result_and_undoes_it(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.finished(world, steps=12)
    one = saved(job, step=12)
    page = visit(world.owner).open(f"/jobs/{job.pk}/checkpoints/")
    height = page.evaluate("document.querySelector('main').offsetHeight")
    page.get_by_role("link", name="Pin").click()
    page.get_by_role("dialog").get_by_role("button", name="Pin").click()
    said = page.locator(".toasts")
    expect(said).to_contain_text("is pinned")
    assert page.evaluate("document.querySelector('main').offsetHeight") <= height + 40
    said.get_by_role("button", name="Undo").click()
    expect(said).to_contain_text("is no longer pinned")
    assert not Checkpoint.objects.get(pk=one.pk).pinned
    said.get_by_role("button", name="Close").click()
    expect(said).to_be_hidden()


@pytest.mark.long
def test_what_was_done_is_undone_by_keys_alone(visit: Visit) -> None:
    world = seed.make_world()
    seed.team_affairs(world)
    endpoint = WebhookEndpoint.objects.latest("created_at")
    page = visit(world.owner).open(f"/webhooks/{endpoint.pk}/")
    page.get_by_role("button", name="Disable").focus()
    page.keyboard.press("Enter")
    said = page.get_by_role("status").filter(has_text="No messages are sent until you enable it.")
    expect(said).to_have_count(1)  # a polite live region
    page.get_by_role("link", name="Skip to content").focus()
    page.keyboard.press("Enter")
    pressed_until(page, said.get_by_role("button", name="Undo"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="Webhook enabled.")).to_have_count(1)
    assert WebhookEndpoint.objects.get(pk=endpoint.pk).disabled_at is None


@pytest.mark.long
def test_times_are_local_with_utc_in_parentheses(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=2, at=datetime(2026, 3, 1, 20, 30, tzinfo=UTC))
    page = visit(world.owner, zone="Asia/Tokyo").open(f"/jobs/{job.pk}/")
    submitted = page.locator(".facts time")
    expect(submitted).to_have_text("2026-03-02 05:30:00 (20:30:00 UTC)")
    expect(page.locator(".events time").last).to_have_attribute(
        "title", re.compile("^2026-03-02 05:3.* here, 2026-03-01 20:3.* UTC$")
    )
    expect(page.locator("#region-events [data-zone]")).to_contain_text("your time zone")


@pytest.mark.long
def test_whoever_goes_by_keys_always_sees_where_they_are(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.judged(seed.running(world, steps_done=40))
    visitor = visit(world.owner)
    for path in ("/jobs/", f"/jobs/{job.pk}/", "/jobs/new"):
        page, seen = visitor.open(path), set[str]()
        for _ in range(45):
            page.keyboard.press("Tab")
            told = page.evaluate(FOCUSED)
            assert told["isMarked"] and told["isInSight"], f"{path}: {told['what']}"
            seen.add(told["what"])
        assert len(seen) > 12, f"{path}: the keys do not get on: {seen}"


@pytest.mark.long
def test_a_state_that_changes_is_said_aloud_once(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=3)
    page = visit(world.owner).open(f"/jobs/{job.pk}/")
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    seed.ended(job, JobState.SUCCEEDED, message="All 3 steps are done.")
    said = page.get_by_role("status").filter(has_text="State: succeeded")
    expect(said).to_have_count(1, timeout=ARRIVES_WITHIN_MS)
