"""The charts of a job's page in a real Chromium: content, redrawing, pointer and keys."""

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction
from playwright.sync_api import Page, expect

from backend.checkpoints.models import Checkpoint
from backend.jobs.attempts.beginning import begin_attempt
from backend.jobs.lifecycle import change_state, locked_job, next_cursor
from backend.jobs.models import Job, JobState
from backend.telemetry.series.points import NewPoint, store_points
from tests.frontend import seed
from tests.frontend.conftest import Visitor
from tests.frontend.curves.pointing import drawn, place_of
from tests.frontend.test_browser import expect_value, width_of

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
Visit = Callable[..., Visitor]
SPIKE = 1_234
DRAWN = "document.querySelector(`[data-chart='reward'] [data-plot]`).data?.length > 0"
COUNT_DRAWINGS = (
    "window.drawings = []; const react = Plotly.react;"
    "Plotly.react = (plot, ...rest) => { drawings.push(plot.closest('[data-chart]').dataset.chart); "
    "return react(plot, ...rest); }; null"
)


def measured(job: Job, steps: range, *, attempt: int = 1, **series: Callable[[int], float]) -> None:
    """Two seconds per step. Names have __ for the slash."""
    begun = datetime.now(UTC)
    with transaction.atomic():
        locked = locked_job(job.pk)
        told = next_cursor(locked, count=len(steps)) - len(steps)
        points = [
            NewPoint(
                name=name.replace("__", "/"),
                step=step,
                at=begun + timedelta(seconds=2 * step),
                value=value(step),
                cursor=cursor,
            )
            for cursor, step in enumerate(steps, start=told + 1)
            for name, value in series.items()
        ]
        store_points(locked, attempt, points)
        Job.objects.filter(pk=job.pk).update(step=steps[-1])


@pytest.fixture
def world(transactional_db: None) -> seed.World:
    return seed.make_world()


@pytest.fixture
def long_job(world: seed.World) -> Job:
    """2,000 steps with one outlier."""
    job = seed.running(world, steps_done=1, training={"steps": 3_000})
    measured(
        job,
        range(2, 2_001),
        reward__mean=lambda step: 9.0 if step == SPIKE else 0.5 + 0.2 * math.sin(step / 3),
        train__loss=lambda step: -1.0 / step,
        train__tokens=lambda step: 100.0,
        trainer__step_s=lambda step: 2.0,
    )
    return job


def opened(visitor: Visitor, job: Job, query: str = "") -> Page:
    page = visitor.open(f"/jobs/{job.pk}/metrics/{query}")
    expect_value(page, DRAWN)
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    return page


def settle(page: Page) -> None:
    """Waits until charts that scrolled into view are drawn, one per frame."""
    page.evaluate("async () => { for (let i = 0; i < 40; i++) await new Promise(requestAnimationFrame); }")


@pytest.mark.long
def test_long_run_is_drawn_as_band_mean_and_smoothed_line(visit: Visit, world: seed.World, long_job: Job) -> None:
    visitor = visit(world.owner)
    page = opened(visitor, long_job)
    lines = drawn(page, "reward")
    band, mean, smooth = (lines[f"training{kind}"] for kind in (", lowest to highest", "", ", smoothed"))
    pixels = page.evaluate("document.querySelector(`[data-chart='reward'] [data-plot]`).clientWidth")
    assert 40 < len(mean["x"]) <= pixels / 2 and band["fill"] == "toself"
    assert len(band["x"]) == 2 * len(mean["x"]), "up along the highest and back along the lowest"
    assert max(band["y"]) == 9.0, "no spike is smoothed away"
    assert mean["opacity"] < 0.5 < smooth["opacity"]
    swing = [max(line["y"][-40:]) - min(line["y"][-40:]) for line in (mean, smooth)]
    assert swing[1] < swing[0] / 2
    assert mean["x"][-1] == 2_000
    assert not visitor.complaints


@pytest.mark.long
def test_only_charts_with_news_are_drawn_again(visit: Visit, world: seed.World) -> None:
    job = seed.running(world, steps_done=31)
    visitor = visit(world.owner)
    page = opened(visitor, job)
    page.locator(".charts").first.scroll_into_view_if_needed()
    expect_value(page, "[...document.querySelectorAll('[data-plot]')].filter((each) => each.data).length >= 8")
    settle(page)
    page.evaluate(COUNT_DRAWINGS)
    measured(job, range(32, 33), train__loss=lambda step: 0.5)
    expect_value(page, "document.querySelector(`[data-chart='loss'] [data-plot]`).data[0].x.at(-1) === 32")
    assert set(page.evaluate("drawings")) == {"loss"}
    assert not visitor.complaints


@pytest.mark.long
def test_crosshair_reads_all_charts_without_redrawing(visit: Visit, world: seed.World) -> None:
    job = seed.running(world, steps_done=40)
    visitor = visit(world.owner)
    page = opened(visitor, job)
    page.locator(".charts").first.scroll_into_view_if_needed()
    expect_value(page, "[...document.querySelectorAll('[data-plot]')].filter((each) => each.data).length >= 8")
    settle(page)
    page.evaluate(COUNT_DRAWINGS)
    page.mouse.move(*place_of(page, "loss", 17))
    expect(page.locator("[data-there]")).to_have_text("step 17")
    places = page.evaluate("[...document.querySelectorAll('.hair:not([hidden])')].map((each) => each.style.transform)")
    assert len(places) >= 8 and len(set(places)) == 1, "panels are aligned on one axis"
    value = drawn(page, "entropy")["entropy"]["y"][16]
    words = page.locator("[data-chart=entropy] .there").text_content() or ""
    assert float(words) == pytest.approx(value, abs=0.006)
    assert page.evaluate("drawings") == []
    page.mouse.move(5, 5)
    expect(page.locator(".hair:not([hidden])")).to_have_count(0)
    assert not visitor.complaints


@pytest.mark.long
def test_a_chart_is_read_by_keys_and_leads_to_a_step(visit: Visit, world: seed.World) -> None:
    job = seed.running(world, steps_done=40)
    visitor = visit(world.owner)
    page = opened(visitor, job)
    chart = page.get_by_role("slider", name="Entropy: use the arrow keys")
    chart.focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    assert chart.get_attribute("aria-valuenow") == "37"
    assert (chart.get_attribute("aria-valuetext") or "").startswith("step 37: entropy ")
    page.keyboard.press("Enter")
    expect(page.locator("[data-reading-step]")).to_have_text("Step 37")
    assert not visitor.complaints


@pytest.mark.long
def test_axis_smoothing_and_scale_stand_in_the_address(visit: Visit, world: seed.World, long_job: Job) -> None:
    visitor = visit(world.owner)
    page = opened(visitor, long_job, "?kept=1")
    page.get_by_label("x axis").select_option("tokens")
    page.get_by_label("smoothing").select_option("none")
    page.get_by_label("log scale").check()
    assert page.url.endswith("?kept=1&axis=tokens&smooth=0&scale=log")
    page.reload()
    expect_value(page, DRAWN)
    last = "document.querySelector(`[data-chart='reward'] [data-plot]`).data.find((each) => each.name === 'training').x"
    expect_value(page, f"Math.round({last}.at(-1)) > 190_000")  # 100 tokens per step, 2,000 steps
    assert page.get_by_label("log scale").is_checked() and page.get_by_label("x axis").input_value() == "tokens"
    assert "training, smoothed" not in drawn(page, "reward")
    assert page.evaluate("document.querySelector(`[data-chart='reward'] [data-plot]`)._fullLayout.yaxis.type") == "log"
    page.get_by_label("x axis").select_option("time")
    expect_value(page, f"Math.abs({last}.at(-1) - 2 * 1998) < 20")  # seconds since the first known time
    assert not visitor.complaints


@pytest.mark.long
def test_a_drag_shows_those_steps_point_by_point_on_every_chart(visit: Visit, world: seed.World, long_job: Job) -> None:
    visitor = visit(world.owner)
    page = opened(visitor, long_job)
    (x0, y), (x1, _) = place_of(page, "reward", 1_190), place_of(page, "reward", 1_270)
    page.mouse.move(x0, y)
    page.mouse.down()
    page.mouse.move(x1, y, steps=4)
    page.mouse.up()
    expect(page.locator("[data-range-words]")).to_contain_text("steps 1,")
    expect_value(page, "document.querySelector(`[data-chart='reward'] [data-plot]`).data[0].name === 'training'")
    lines = drawn(page, "reward")
    assert "training, lowest to highest" not in lines, "each step by itself"
    assert lines["training"]["y"][lines["training"]["x"].index(SPIKE)] == 9.0
    asked = page.url
    assert "from=1" in asked and "to=12" in asked
    ranges = (
        "[...document.querySelectorAll('[data-plot]')].filter((p) => p.data).map((p) => p.layout.xaxis.range.join())"
    )
    expect_value(page, f"new Set({ranges}).size", 1)
    page.reload()
    expect_value(page, DRAWN)
    expect_value(page, f"new Set({ranges}).size", 1)
    assert page.url == asked
    page.get_by_role("button", name="reset zoom").click()
    expect_value(page, "document.querySelector(`[data-chart='reward'] [data-plot]`).layout.xaxis.range[0] === 0")
    assert "from" not in page.url
    assert not visitor.complaints


@pytest.mark.long
def test_chart_ends_at_current_step_after_rollback(visit: Visit, world: seed.World) -> None:
    job = seed.running(world, steps_done=30)
    visitor = visit(world.owner)
    page = opened(visitor, job)
    saved = {"step": 20, "version": 20, "uri": "file:///store/1-20", "manifest_sha256": "a" * 64, "num_bytes": 1}
    Checkpoint.objects.create(job=job, attempt=1, created_at=datetime.now(UTC), **saved)
    with transaction.atomic():
        locked = locked_job(job.pk)
        change_state(locked, JobState.RECOVERING, actor="reconcile", now=datetime.now(UTC))
        begin_attempt(locked, now=datetime.now(UTC))
    last = "document.querySelector(`[data-chart='loss'] [data-plot]`).data?.[0].x.at(-1)"
    expect_value(page, last, 20)
    marks = "document.querySelector(`[data-chart='loss'] [data-plot]`).layout.shapes.map((each) => each.x0)"
    expect_value(page, f"{marks}.includes(20)")
    measured(job, range(21, 23), attempt=2, train__loss=lambda step: 0.25)
    expect_value(page, last, 22)
    page.reload()
    expect_value(page, last, 22)
    assert not visitor.complaints


@pytest.mark.long
@pytest.mark.parametrize("query", ["", "?axis=time&scale=log&from=100&to=900"])
def test_charts_fit_on_a_phone(visit: Visit, world: seed.World, long_job: Job, query: str) -> None:
    visitor = visit(world.owner, width=390, dark=True)
    page = opened(visitor, long_job, query)
    assert width_of(page) == 390
    assert not visitor.complaints


@pytest.mark.long
def test_twelve_charts_stand_on_one_screen(visit: Visit, world: seed.World) -> None:
    job = seed.running(world, steps_done=5)
    page = opened(visit(world.owner), job)
    shown: Mapping[str, float] = page.evaluate(
        "(() => { const found = [...document.querySelectorAll('.charts .panel')].map((p) => p.getBoundingClientRect());"
        "return { number: found.length, high: found[11].bottom - found[0].top }; })()"
    )
    assert shown["number"] >= 12 and shown["high"] <= 844 - 56 - 60, "below the page's head and the line of vitals"
