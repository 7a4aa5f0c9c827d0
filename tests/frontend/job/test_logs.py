"""The logs of a job: filter, search, follow, and no scrolling while the user reads."""

import pytest
from django.test import Client
from playwright.sync_api import expect

from backend.pages.job.log_lines import LINES_A_TIME
from tests.frontend import seed
from tests.frontend.html_reading import text_of, words_of
from tests.frontend.job.driver_facts import log_lines, send_facts
from tests.frontend.seed import World
from tests.frontend.test_browser import ARRIVES_WITHIN_MS, Visit, expect_value

SAID = (
    log_lines("trainer", ("info", "step 1 took 1.2 s"), ("warning", "Gradient <b>norm</b> is 9.1")),
    log_lines("rollout-1", ("debug", "asked for 4 groups"), ("error", "CUDA out of memory\n  at line 7")),
)


def numbered(first: int, last: int) -> dict[str, object]:
    return log_lines("trainer", *(("info", f"line {number}.") for number in range(first, last + 1)))


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", ["step 1 took", "norm", "asked for", "CUDA"]),
        ("level=warning", ["norm", "CUDA"]),
        ("level=error", ["CUDA"]),
        ("of=trainer", ["step 1 took", "norm"]),
        ("q=cuda", ["<mark>CUDA</mark>"]),
        ("q=cuda&level=error&of=trainer", []),
        ("level=nonsense&q=%20%20", ["step 1 took", "norm", "asked for", "CUDA"]),
        ("q=%3Cb%3E", ["<mark>&lt;b&gt;</mark>"]),
    ],
)
def test_lines_are_filtered_by_level_part_and_words(world: World, owner: Client, query: str, shown: list[str]) -> None:
    job = seed.running(world, steps_done=1)
    send_facts(job, *SAID)
    page = text_of(owner.get(f"/jobs/{job.pk}/logs/?{query}"))
    assert page.count("<li data-level") == len(shown) and all(each in page for each in shown)
    assert ("data-log-none hidden" in page) == bool(shown) and (shown or "No matching lines." in page)
    assert [f"<option>{part}" in page or f"<option selected>{part}" in page for part in ("trainer", "rollout-1")] == [
        True
    ] * 2


def test_newer_and_earlier_lines_join_without_gap_or_repeat(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=1)
    for batch in range(20):
        send_facts(job, numbered(50 * batch + 1, 50 * batch + 50))
    path = f"/jobs/{job.pk}/logs/"
    page = text_of(owner.get(path))
    assert page.count("<li data-level") == LINES_A_TIME and "line 1000." in page
    place = page.split('data-back="')[1].split('"')[0]
    follow = page.split('data-follow="')[1].split('"')[0]
    older = text_of(owner.get(f"{path}?part=lines&before={place}"))
    assert "line 700." in older and "line 701." not in older and "line 701." in page
    send_facts(job, numbered(1001, 1003))
    newer = text_of(owner.get(f"{path}?part=lines&after={follow}"))
    assert newer.count("<li data-level") == 3 and "line 1001." in newer


def test_a_job_that_said_nothing_says_so(world: World, owner: Client) -> None:
    assert "No log lines yet." in words_of(owner.get(f"/jobs/{seed.submitted(world).pk}/logs/"))


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_log_view_follows_only_at_its_end(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=1)
    for batch in range(16):
        send_facts(job, numbered(50 * batch + 1, 50 * batch + 50))
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/logs/")
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    box, place = page.get_by_role("log"), "document.querySelector('[data-log]')"
    at_end = f"{place}.scrollHeight - {place}.scrollTop - {place}.clientHeight < 2"
    send_facts(job, numbered(801, 803))
    expect(box.get_by_text("line 803.")).to_be_visible(timeout=ARRIVES_WITHIN_MS)
    expect_value(page, at_end)
    page.evaluate(f"{place}.scrollTop = 200")
    top = f"{place}.getBoundingClientRect().top"
    read = f"[...{place}.querySelectorAll('li')].find((li) => li.getBoundingClientRect().top >= {top}).textContent"
    before = page.evaluate(read)
    send_facts(job, numbered(804, 806))
    more = page.get_by_role("button", name="3 new lines")
    expect(more).to_be_visible(timeout=ARRIVES_WITHIN_MS)
    assert page.evaluate(read) == before and page.evaluate(f"{place}.scrollTop") == 200
    page.get_by_role("link", name="Earlier lines").click()
    expect(box.get_by_text("line 450.", exact=True)).to_be_attached()
    assert page.evaluate(read) == before, "what is put above moves nothing"
    more.click()
    expect_value(page, at_end)
    expect(more).to_be_hidden()
    assert not visitor.complaints


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("width", [1280, 390])
def test_a_search_is_kept_in_the_address_and_followed(visit: Visit, width: int) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=1)
    send_facts(job, *SAID)
    visitor = visit(world.owner, width=width)
    page = visitor.open(f"/jobs/{job.pk}/logs/")
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    page.get_by_label("Search").fill("memory")
    expect(page.locator(".log li")).to_have_count(1)
    send_facts(job, log_lines("rollout-2", ("info", "all is well"), ("error", "out of MEMORY again")))
    expect(page.locator(".log li")).to_have_count(2, timeout=ARRIVES_WITHIN_MS)
    expect(page.locator(".log mark").last).to_have_text("MEMORY")
    page.reload()
    expect(page.locator(".log li")).to_have_count(2)
    page.get_by_label("Search").fill("nobody said this")
    expect(page.get_by_text("No matching lines.")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert not visitor.complaints
