"""What somebody new does on the page in their first five minutes, in a real browser on the whole site; and how somebody
finds a run that is stuck, by the verdict alone."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.e2e.conftest import Stack
from tests.frontend.conftest import chromium  # noqa: F401  # a fixture
from tests.verdict.runs import paying

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.long]

STARTS_WITHIN_MS = 600_000
"""A job: its processes are started one after the other, on two cores."""
ANSWERS_WITHIN_MS = 180_000


@pytest.fixture
def page(stack: Stack, chromium: Browser) -> Iterator[Page]:  # noqa: F811
    """Signed in, on the list of jobs. Whatever the pages complain about is collected, and must be nothing."""
    local = json.loads(Path(stack.home.local_json).read_text())
    context = chromium.new_context(base_url=local["url"])
    page, complaints = context.new_page(), list[str]()
    page.set_default_timeout(ANSWERS_WITHIN_MS)
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in {"error", "warning"} else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto("/jobs/")
    page.get_by_label("Email").fill(local["user"])
    page.get_by_label("Password").fill(local["password"])
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    yield page
    context.close()
    assert not complaints


def state(page: Page) -> Locator:
    return page.locator("#region-head .chip")


def asks(page: Page, link: str, button: str) -> None:
    """Clicks a control and confirms its dialog."""
    page.locator("#region-head").get_by_role("link", name=link, exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name=button, exact=True).click()


@pytest.mark.long
def test_new_user_trains_pauses_resumes_cancels_and_retries(page: Page) -> None:
    page.get_by_role("link", name="New job").first.click()
    page.get_by_role("link", name=re.compile("^Sums with a tool")).click()
    steps = page.get_by_label("Steps", exact=True)
    steps.fill("a few")
    page.keyboard.press("Tab")
    expect(page.locator(".field", has=steps).locator(".error")).to_be_visible(timeout=ANSWERS_WITHIN_MS)
    steps.fill("5000")
    page.keyboard.press("Tab")
    expect(page.locator(".field", has=steps).locator(".error")).to_have_count(0, timeout=ANSWERS_WITHIN_MS)
    page.get_by_label("Name", exact=True).fill("My first")
    page.get_by_role("button", name="Submit job").click()

    expect(page.get_by_role("heading", level=1)).to_have_text("My first")
    expect(state(page)).to_have_text("running", timeout=STARTS_WITHIN_MS)
    verdict = page.locator("#verdict .sentence")
    expect(verdict).not_to_be_empty(timeout=STARTS_WITHIN_MS)

    page.get_by_role("link", name="Trajectories", exact=True).click()
    sample = page.locator("details.sample").first
    expect(sample).to_be_visible(timeout=ANSWERS_WITHIN_MS)
    sample.locator("summary").click()  # who reads is not pulled on to the next step
    sample.get_by_role("link", name="Open with tokens").click()
    last_turn = page.locator(".turn").last
    last_turn.scroll_into_view_if_needed()
    expect(last_turn.locator(".words")).to_be_in_viewport()
    expect(last_turn.locator(".words")).not_to_be_empty()
    page.get_by_role("link", name="My first").click()

    asks(page, "Pause", "Pause")
    expect(state(page)).to_have_text("paused", timeout=ANSWERS_WITHIN_MS)
    asks(page, "Resume", "Resume")
    expect(state(page)).to_have_text("running", timeout=STARTS_WITHIN_MS)
    asks(page, "Cancel job", "Cancel job")
    expect(state(page)).to_have_text("cancelled", timeout=ANSWERS_WITHIN_MS)
    asks(page, "Retry", "Retry")
    expect(page.locator(".lineage")).to_contain_text("retry of My first")
    expect(page.get_by_role("heading", level=1)).not_to_have_text("My first")
    asks(page, "Cancel job", "Cancel job")
    expect(state(page)).to_have_text("cancelled", timeout=ANSWERS_WITHIN_MS)


def test_a_stuck_run_is_found_by_its_verdict_alone(page: Page, stack: Stack) -> None:
    """Its environment pays nothing; only the verdict reports it, in the list and on the page."""
    nothing = paying('return {"reward": 0.0}')
    environment = {"name": "custom", "params": {}, "code": nothing["environment.code"]}
    job = stack.submit(
        environment=environment,
        training={"steps": 5_000, "prompts_per_step": 4, "checkpoint_every": 5_000},
        evaluation={"prompts": 4},
        rollout={"replicas": 1},
    )
    row = page.get_by_role("row").filter(has=page.locator(f'a[href*="{job["id"]}"]'))
    expect(row).to_contain_text("stuck", timeout=STARTS_WITHIN_MS)
    row.get_by_role("link").first.click()
    expect(page.locator("#verdict .sentence")).to_contain_text("Stuck: in 100 % of the groups")
    expect(page.locator("#verdict")).to_contain_text("a reward that pays for partial success")
    asks(page, "Cancel job", "Cancel job")
    expect(state(page)).to_have_text("cancelled", timeout=ANSWERS_WITHIN_MS)
