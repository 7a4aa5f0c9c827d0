"""Saving a chart as a picture or numbers, and finding series by name."""

import csv
from collections.abc import Callable
from io import BytesIO, StringIO
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from tests.frontend import seed
from tests.frontend.conftest import Visitor
from tests.frontend.test_browser import ARRIVES_WITHIN_MS, expect_value

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
Visit = Callable[..., Visitor]


@pytest.fixture
def world(transactional_db: None) -> seed.World:
    return seed.make_world()


def saved(page: Page, button: str) -> tuple[str, bytes]:
    page.get_by_role("button", name="Save response length").click()
    with page.expect_download() as waiting:
        page.get_by_role("button", name=button).click()
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


@pytest.mark.long
def test_a_chart_is_saved_as_a_picture_of_what_is_seen(visit: Visit, world: seed.World) -> None:
    job = seed.running(world, steps_done=12, name="Sums & more")
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/metrics/")
    expect_value(page, "document.querySelector(`[data-chart='length'] [data-plot]`).data?.length > 0")
    name, content = saved(page, "Picture (PNG)")
    picture = Image.open(BytesIO(content))
    width = page.evaluate("document.querySelector(`[data-chart='length'] [data-plot]`).clientWidth")
    assert name == "Sums-more-Response-length.png" and picture.format == "PNG"
    assert picture.width == 2 * (width + 14), "sharp on a good screen"
    colours = picture.convert("RGB").getcolors(2**24) or []
    assert len(colours) > 20, "lines, words and paper"
    assert not visitor.complaints


@pytest.mark.long
def test_a_chart_is_saved_as_its_numbers(visit: Visit, world: seed.World) -> None:
    job = seed.running(world, steps_done=12)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/metrics/?from=3&to=9")
    expect_value(page, "document.querySelector(`[data-chart='length'] [data-plot]`).data?.length > 0")
    name, content = saved(page, "Numbers (CSV)")
    rows = list(csv.DictReader(StringIO(content.decode())))
    assert name.endswith(".csv") and {row["series"] for row in rows} == {"length/mean", "length/p99"}
    kept = job.series.get(name="length/mean").points.filter(step__range=(3, 9)).order_by("step")
    mine = [row for row in rows if row["series"] == "length/mean"]
    assert [(int(row["first_step"]), float(row["mean"])) for row in mine] == list(kept.values_list("step", "value"))
    assert {row["points"] for row in rows} == {"1"}
    assert not visitor.complaints


@pytest.mark.long
def test_a_name_that_a_table_program_would_compute_is_text(visit: Visit) -> None:
    page = visit().open("/help/")
    told = page.evaluate(
        "async () => { const { csvOf } = await import('/static/js/charts/save.js'), name = '=1+2,\"x\"';"
        "return csvOf([name], { series: { [name]: [[1, 5]] }, bands: {}, counts: {} }); }"
    )
    assert list(csv.reader(StringIO(told)))[1] == ['\'=1+2,"x"', "1", "1", "1", "5", "5", "5"]


@pytest.mark.long
def test_series_matching_a_regex_are_drawn_and_stay_live(visit: Visit, world: seed.World) -> None:
    job = seed.running(world, steps_done=12)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/metrics/")
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    page.get_by_text("Every series as a chart").click()
    field, names = page.get_by_label("matching"), page.locator("[data-matching] h2")
    field.fill("learning|^train/loss")
    expect(names).to_have_text(["train/learning_rate", "train/loss"])
    plot = "document.querySelector(`[data-matching] [data-chart='train/learning_rate'] [data-plot]`)"
    expect_value(page, f"{plot}?.data?.[0].x.length", 12)
    seed.trained(world, job, 13)
    expect_value(page, f"{plot}.data[0].x.at(-1)", 13)
    field.fill("learning(")
    expect(page.get_by_text("Not a valid regular expression")).to_be_visible()
    expect(names).to_have_count(2, timeout=ARRIVES_WITHIN_MS)
    field.fill("ENTROPY")
    expect(names).to_have_text(["train/entropy"])
    page.reload()
    expect(names).to_have_text(["train/entropy"])
    expect_value(page, "document.querySelector('[data-matching] [data-plot]').data?.[0].x.length", 13)
    assert not visitor.complaints


@pytest.mark.long
def test_many_series_are_shown_a_screen_at_a_time(visit: Visit, world: seed.World) -> None:
    job = seed.running(world, steps_done=3)
    visitor = visit(world.owner, width=390)
    page = visitor.open(f"/jobs/{job.pk}/metrics/?matching=.")
    names = page.locator("[data-matching] h2")
    expect(names).to_have_count(12)
    every = job.series.count()
    expect(page.locator("[data-found]")).to_have_text(f"{every} of {every}")
    for shown in range(12, every, 12):
        page.get_by_role("button", name=f"Show {min(12, every - shown)} more").click()
        expect(names).to_have_count(min(every, shown + 12))
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert not visitor.complaints
