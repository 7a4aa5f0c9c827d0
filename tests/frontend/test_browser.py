"""The pages in a real Chromium, with a real server process and Postgres.

Every test ends with the same checks: no error in the console, no violation of the content security policy.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.db import transaction
from django.urls import reverse
from playwright.sync_api import Page, Route, expect

from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobState
from backend.pages.job.panels.charts import CHARTS, HELD_OUT
from backend.pages.job.tabs import TABS
from backend.telemetry.models import MetricSeries
from engine.spec.facts import TrajectorySample
from tests.frontend import seed
from tests.frontend.conftest import Visitor
from tests.frontend.curves import pointing
from tests.waiting import eventually

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

Visit = Callable[..., Visitor]
ARRIVES_WITHIN_MS = 8_000


def width_of(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth"))


def see_everything(page: Page) -> None:
    """Scrolls through the page, so that every chart was visible."""
    page.evaluate(
        "async () => { for (let y = 0; y < document.body.scrollHeight; y += 400) "
        "{ scrollTo(0, y); await new Promise((done) => setTimeout(done, 60)); } scrollTo(0, 0); }"
    )


def expect_value(page: Page, expression: str, wanted: Any = True) -> None:  # any JSON value
    """Playwright's own wait_for_function needs eval, which the page's policy forbids."""
    eventually(
        lambda: page.evaluate(expression),
        f"{expression} is {wanted!r}",
        until=lambda value: value == wanted,
        pause=lambda seconds: page.wait_for_timeout(1_000 * seconds),
        every_s=0.1,
    )


def drawn_points(page: Page) -> list[list[int]]:
    return page.evaluate(  # type: ignore[no-any-return]  # what this script gives
        "[...document.querySelectorAll('[data-plot]')].map((p) => (p.data ?? []).map((t) => t.x.length))"
    )


@pytest.mark.proof
def test_signing_in_leads_to_the_jobs(visit: Visit) -> None:
    world = seed.make_world()
    seed.may_sign_in(world.owner)
    seed.submitted(world, name="Hello")
    visitor = visit()
    page = visitor.open("/jobs/")
    page.get_by_label("Email").fill(world.owner.email)
    page.get_by_label("Password").fill(seed.PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Hello")).to_be_visible()
    assert not visitor.complaints


@pytest.mark.proof
def test_a_jobs_page_draws_every_chart(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=30)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/metrics/")
    see_everything(page)
    expect(page.locator(".plot .main-svg").first).to_be_attached()
    expect_value(page, "[...document.querySelectorAll('[data-plot]')].every((p) => p.data?.length > 0)")
    expected = [[1 if trace.key == HELD_OUT else 30 for trace in chart.traces] for chart in CHARTS]
    assert drawn_points(page) == expected
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    page.get_by_role("button", name="What staleness means").click()
    expect(page.get_by_text("0 is on-policy.")).to_be_visible()
    assert not visitor.complaints


@pytest.mark.long
def test_charts_that_nobody_sees_are_not_drawn(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=5)
    visitor = visit(world.owner, width=390)
    page = visitor.open(f"/jobs/{job.pk}/metrics/")
    expect_value(page, "document.querySelector('[data-plot]').data?.length > 0")
    assert page.evaluate("[...document.querySelectorAll('[data-plot]')].at(-1).data") is None
    assert not visitor.complaints


@pytest.mark.proof
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
    expect_value(page, "document.querySelector('[data-chart=reward] [data-plot]').data[0].x.at(-1) === 13")
    assert page.evaluate("window.sameDocument")
    assert page.title().startswith("13/120")
    assert not visitor.complaints


@pytest.mark.long
def test_whoever_reads_an_older_step_is_not_pulled_away(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=6)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/trajectories/")
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    page.get_by_role("link", name="Older").focus()
    page.keyboard.press("Enter")
    expect(page.locator("[data-reading-step]")).to_have_text("Step 5")
    expect(page.get_by_role("link", name="Older")).to_be_focused()
    seed.trained(world, job, 7)
    expect(page.locator("[data-value=done]").first).to_have_text("7", timeout=ARRIVES_WITHIN_MS)
    expect(page.locator("[data-reading-step]")).to_have_text("Step 5")
    page.get_by_label("follow newest step").check()
    expect(page.locator("[data-reading-step]")).to_have_text("Step 7")
    assert not visitor.complaints


@pytest.mark.long
def test_a_point_that_is_clicked_opens_its_own_step(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=40)
    job.trajectories.filter(step=17).delete()
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/")
    for step, text in ((9, "Question"), (17, "No trajectories of step 17 are stored")):
        page.goto(f"/jobs/{job.pk}/metrics/")
        expect_value(page, "document.querySelector('[data-chart=reward] .main-svg') !== null")
        page.mouse.click(*pointing.place_of(page, "reward", step))
        expect(page.locator("[data-reading-step]")).to_have_text(f"Step {step}")
        expect(page.locator("[data-reading-part]")).to_contain_text(text)
    page.get_by_label("Go to step").fill("3")
    page.keyboard.press("Enter")
    expect(page.locator("[data-reading-step]")).to_have_text("Step 3")
    page.reload()
    expect(page.locator("[data-reading-step]")).to_have_text("Step 3")
    assert not visitor.complaints


@pytest.mark.long
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


@pytest.mark.long
def test_the_timeline_grows_between_events(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=3)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/")
    bar = "[...document.querySelectorAll('[data-track] rect')].map((each) => parseFloat(each.getAttribute('width')))"
    mark = "parseFloat(document.querySelector('[data-track] circle').getAttribute('cx'))"
    widths, at, lasted = page.evaluate(bar), page.evaluate(mark), page.locator("[data-lasted]").text_content()
    expect_value(page, f"document.querySelector('[data-lasted]').textContent !== {lasted!r}")
    later = page.evaluate(bar)
    assert later[-1] > widths[-1] and later[0] < widths[0] and page.evaluate(mark) < at
    assert sum(later) == pytest.approx(100, abs=0.1)
    assert not visitor.complaints


@pytest.mark.long
def test_metrics_appear_on_page_opened_before_the_first(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=0)
    MetricSeries.objects.all().delete()
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/metrics/")
    page.get_by_text("All metrics").click()
    expect(page.get_by_text("No metrics yet.")).to_be_visible()
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    seed.trained(world, job, 1, reward=0.5)
    seed.ended(job, JobState.SUCCEEDED, message="Done.")
    expect(page.get_by_role("row", name="reward/mean 1 0.50")).to_be_visible(timeout=ARRIVES_WITHIN_MS)
    expect(page.get_by_text("No metrics yet.")).to_be_hidden()
    names = page.locator("[data-metrics] tbody code").all_text_contents()
    assert names == sorted(names) and len(names) > 10
    assert not visitor.complaints


@pytest.mark.long
def test_focus_stays_when_what_it_was_on_is_renewed_or_gone(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=3)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/")
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    page.get_by_role("link", name="Run again").focus()
    with transaction.atomic():
        change_state(locked_job(job.pk), JobState.RECOVERING, actor="engine:1", now=datetime.now(UTC))
    expect(page.locator(".job-head .chip")).to_have_text("recovering", timeout=ARRIVES_WITHIN_MS)
    expect(page.get_by_role("link", name="Run again")).to_be_focused()
    page.get_by_role("link", name="Cancel job").focus()
    seed.ended(job, JobState.FAILED, message="reward: division by zero", failure_class="reward")
    expect(page.locator(".job-head .chip")).to_have_text("failed", timeout=ARRIVES_WITHIN_MS)
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    assert not visitor.complaints


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("path", ["/jobs/", "/jobs/{job}/"])
def test_a_page_whose_session_has_ended_says_so(visit: Visit, path: str) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=2)
    visitor = visit(world.owner)
    page = visitor.open(path.format(job=job.pk))
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    visitor.provokes("401|403")
    Session.objects.all().delete()
    seed.trained(world, job, 3)
    expect(page.locator("[data-connection-words]")).to_have_text("signed out: reload", timeout=ARRIVES_WITHIN_MS)
    assert not visitor.unexpected


@pytest.mark.proof
def test_cancelling_by_keyboard(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=2)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/")
    cancel = page.get_by_role("link", name="Cancel job")
    cancel.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.get_by_role("button", name="Keep job")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(cancel).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Keep job")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".job-head .chip")).to_have_text("stopping")
    assert Job.objects.get().target_state == JobState.CANCELLED
    assert not visitor.complaints


@pytest.mark.long
def test_every_error_at_once_and_then_one_job(visit: Visit) -> None:
    world = seed.make_world()
    visitor = visit(world.owner)
    page = visitor.open("/jobs/new")
    page.get_by_label("Name").fill("")
    page.get_by_label("Steps", exact=True).fill("many")
    page.locator("#f-optimizer-learning_rate").fill("7")
    expect(page.locator("#f-optimizer-learning_rate-error")).to_contain_text("Must be at most 1; got 7.")
    page.get_by_role("button", name="Submit job").click()
    expect(page.locator("#summary")).to_be_focused()
    expect(page.locator(".field.wrong")).to_have_count(3)
    visitor.provokes("422")
    page.get_by_role("link", name="Steps", exact=True).click()
    expect(page.get_by_label("Steps", exact=True)).to_be_focused()
    page.keyboard.type("40")
    page.get_by_label("Steps", exact=True).fill("40")
    page.get_by_label("Name").fill("It's <b>mine</b>")
    page.locator("#f-optimizer-learning_rate").fill("1e-3")
    page.get_by_role("button", name="Submit job").dblclick()
    expect(page.get_by_role("heading", name="It's <b>mine</b>")).to_be_visible()
    assert Job.objects.get().spec["training"]["steps"] == 40
    assert not visitor.unexpected


@pytest.mark.long
def test_the_code_of_the_page_follows_what_is_typed(visit: Visit) -> None:
    visitor = visit(seed.make_world().owner)
    page = visitor.open("/jobs/new")
    curl = page.locator("#curl")
    for typed, read in {"1,024": "1024", "4 096": "4096"}.items():
        page.locator("#f-training-steps").fill(typed)
        expect(curl).to_contain_text(f'"steps": {read}')
    page.get_by_text("Python", exact=True).click()
    page.locator("#f-training-steps").fill("77")
    expect(page.locator("#python")).to_contain_text('"steps": 77')
    expect(page.locator("#python")).to_be_visible()
    page.locator("#f-training-steps").fill("2.048")
    expect(page.locator("[data-calls]")).to_contain_text("Fix the errors in the form")
    assert not visitor.complaints


@pytest.mark.long
def test_value_typed_before_the_script_runs_is_validated(visit: Visit) -> None:
    visitor = visit(seed.make_world().owner)
    page, held = visitor.page, list[Route]()
    page.route("**/new-job*.js", lambda route: held.append(route))
    page.goto("/jobs/new", wait_until="commit")
    page.locator("#f-training-steps").fill("a few")
    eventually(lambda: held, "the script is requested", pause=lambda seconds: page.wait_for_timeout(1_000 * seconds))
    held[0].continue_()
    expect(page.locator("#f-training-steps-error")).to_be_visible()
    assert not visitor.complaints


@pytest.mark.long
def test_validation_without_an_answer_is_repeated(visit: Visit) -> None:
    visitor = visit(seed.make_world().owner)
    page = visitor.open("/jobs/new")
    page.route("**/jobs/new", lambda route: route.abort(), times=1)
    visitor.provokes("ERR_FAILED")
    page.locator("#f-training-steps").fill("a few")
    expect(page.locator("#f-training-steps-error")).to_be_visible(timeout=60_000)
    assert not visitor.unexpected


@pytest.mark.long
def test_errors_and_idle_settings_are_shown_while_typing(visit: Visit) -> None:
    visitor = visit(seed.make_world().owner)
    page = visitor.open("/jobs/new")
    wrong = page.locator("#f-model-source-error")
    page.locator("#f-model-source").fill("nobody-has-it")
    expect(wrong).to_contain_text("your team has no model", ignore_case=True)
    page.locator("#f-model-source").fill("demo")
    expect(wrong).to_have_count(0)
    page.get_by_text("All settings").click()
    page.get_by_label("Find a setting").fill("critic gamma")
    expect(page.locator(".section .field:visible")).to_have_count(1)
    expect(page.locator("#f-algorithm-critic-gamma")).to_be_disabled()
    page.get_by_label("Find a setting").fill("")
    page.locator("#f-algorithm-name").select_option("ppo")
    expect(page.locator("#f-algorithm-critic-gamma")).to_be_enabled()
    page.locator("#f-environment-params").fill("depth = 3")
    expect(page.locator("#f-environment-params-error")).to_contain_text("nknown parameter 'depth'; choose from")
    assert not Job.objects.exists() and not visitor.complaints


@pytest.mark.long
def test_the_outlook_is_of_what_is_typed(visit: Visit) -> None:
    world = seed.make_world(capacity=8)
    visitor = visit(world.owner)
    page = visitor.open("/jobs/new")
    outlook = page.locator("[data-outlook]")
    expect(outlook).to_contain_text("would start now")
    for typed, text in {
        "7": "With 8 devices, this job would start",
        "30": "would wait: needs more devices than available",
    }.items():
        page.locator("#f-rollout-replicas").fill(typed)
        expect(outlook).to_contain_text(text)
    page.locator("#f-rollout-replicas").fill("many")
    expect(outlook).to_contain_text("Some fields are not valid yet")
    expect(page.locator("#f-rollout-replicas")).to_have_value("many")
    assert not Job.objects.exists() and not visitor.complaints


@pytest.mark.long
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wider_than_a_phone(visit: Visit, dark: bool) -> None:
    world = seed.make_world()
    running = seed.running(world, steps_done=6, name="<i>" + "w" * 90, tags=["x" * 40, "مرحبا"])
    running.trajectories.update(response="w" * 3_000, remark="<img src=x onerror=alert(1)>" + "y" * 300)
    wide = {"prompt": "w" * 900, "response": "y" * 900, "version": 1, "staleness": 0, "num_tokens": 1, "reward": 1.0}
    seed.sampled(running, 7, [TrajectorySample(prompt_ordinal=1, sample=0, advantage=0.5, **wide)])
    failed = seed.failed(world, name="Short", message="/very/long/path/" * 40)
    visitor = visit(world.owner, width=390, dark=dark)
    for path in (
        "/jobs/",
        "/jobs/new",
        *(reverse(tab.page, args=[running.pk]) for tab in TABS),
        reverse("job_trajectory", args=[running.pk, running.trajectories.latest("pk").trajectory_id]),
        f"/jobs/{running.pk}/cancel",
        f"/jobs/{failed.pk}/",
        "/help/",
        "/docs/api",
    ):
        page = visitor.open(path)
        see_everything(page)
        assert width_of(page) == 390, path
    assert not visitor.complaints


@pytest.mark.proof
def test_hostile_samples_are_text(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=3)
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    job.trajectories.update(response=hostile, prompt=hostile, remark=hostile)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/trajectories/")
    page.get_by_role("link", name="Older").click()
    expect(page.locator(".sample .beginning").first).to_have_text(hostile)
    assert page.locator(".reading img, .reading script").count() == 0
    assert not visitor.complaints


@pytest.mark.long
def test_the_theme_follows_the_system_until_it_is_chosen(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=3)
    visitor = visit(world.owner, dark=True)
    page = visitor.open(f"/jobs/{job.pk}/")
    expect_value(page, "document.querySelector('[data-plot]').data?.length > 0")
    background = "getComputedStyle(document.documentElement).backgroundColor"
    colours = f"[{background}, document.querySelector('[data-plot]').data[0].line.color]"
    dark = page.evaluate(colours)
    page.get_by_role("button", name="Theme: dark. Switch to light").click()
    expect_value(page, f"{colours}[1] !== {dark[1]!r}")
    light = page.evaluate(colours)
    assert light[0] != dark[0]
    page.reload()
    assert page.evaluate(background) == light[0]  # without waiting: the charts may not be drawn yet
    assert not visitor.complaints


@pytest.mark.long
def test_without_scripts_the_page_still_tells_and_cancels(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=3)
    visitor = visit(world.owner, scripts=False)
    page = visitor.open(f"/jobs/{job.pk}/")
    expect(page.locator("[data-value=done]").first).to_have_text("3")
    page.get_by_role("link", name="Cancel job").click()
    page.get_by_role("button", name="Cancel job").click()
    expect(page.locator(".job-head .chip")).to_have_text("stopping")
