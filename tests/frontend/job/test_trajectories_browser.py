"""Trajectories in a browser: the displayed step stays while new ones arrive; tokens by pointer, keys and URL."""

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.frontend import seed
from tests.frontend.test_browser import ARRIVES_WITHIN_MS, Visit

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.mark.long
def test_an_open_sample_stays_where_it_is_while_new_steps_come(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=3)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/trajectories/")
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    seed.trained(world, job, 4)
    expect(page.locator("[data-reading-step]")).to_have_text("Step 4", timeout=ARRIVES_WITHIN_MS)
    sample = page.locator("details.sample").filter(has_text="5 messages").first
    sample.locator("summary").press("Enter")
    expect(sample.locator(".turn")).to_have_count(5)
    held, place = sample.get_attribute("id"), sample.locator(".turn").nth(2).bounding_box()
    for step in (5, 6):
        seed.trained(world, job, step)
        expect(page.locator("[data-value=done]").first).to_have_text(str(step), timeout=ARRIVES_WITHIN_MS)
    since = page.get_by_role("button", name="Step 6 is available")
    expect(since).to_be_visible()
    expect(page.locator("[data-reading-step]")).to_have_text("Step 4")
    assert place == page.locator(f"#{held} .turn").nth(2).bounding_box()
    since.press("Enter")
    expect(page.locator("[data-reading-step]")).to_have_text("Step 6")
    expect(page.locator("[data-reading-step]")).to_be_focused()
    expect(since).to_be_hidden()
    assert not visitor.complaints


@pytest.mark.long
def test_tokens_are_read_by_pointer_keys_and_url(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=1)
    row = job.trajectories.filter(num_turns=5).first()
    assert row is not None
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/trajectories/{row.trajectory_id}?colour=version#token-20")
    expect(page.locator("#token-20")).to_have_class("env here")
    expect(told(page)).to_contain_text("written by the environment")
    page.get_by_role("slider").focus()
    for _ in range(16):
        page.keyboard.press("ArrowLeft")
    expect(told(page)).to_contain_text("Token 4: “")
    for part in ("log-prob", "trainer", "advantage", "version"):
        expect(told(page)).to_contain_text(part)
    assert (page.get_by_role("slider").get_attribute("aria-valuetext") or "").startswith("Token 4: ")
    page.locator("#token-2").hover()
    expect(told(page)).to_contain_text("Token 2: “")
    page.locator("#token-3").click()
    page.get_by_role("link", name="Trainer − rollout").press("Enter")
    assert page.url.endswith(f"{row.trajectory_id}?colour=gap#token-3")
    expect(page.get_by_text("the trainer finds it less than 0.9 times as likely")).to_be_visible()
    page.reload()
    expect(page.locator("[data-tokens]")).to_have_attribute("data-colour", "gap")
    expect(told(page)).to_contain_text("Token 3: “")
    assert not visitor.complaints


def told(page: Page) -> Locator:
    return page.locator("[data-token-words]")
