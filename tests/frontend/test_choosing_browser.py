"""Scripts for selection: jobs that stay selected when the list refreshes, and parameters inserted by a click."""

import pytest
from playwright.sync_api import expect

from backend.jobs.models import Job
from tests.frontend import seed
from tests.frontend.test_browser import ARRIVES_WITHIN_MS, Visit

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.mark.long
def test_selected_jobs_survive_refresh_and_bulk_cancel(visit: Visit) -> None:
    world = seed.make_world()
    jobs = [seed.submitted(world, name=name) for name in ("Alpha", "Beta", "Gamma")]
    visitor = visit(world.owner)
    page = visitor.open("/jobs/?sort=name")
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    expect(page.get_by_role("button", name="Cancel")).to_be_disabled()
    page.get_by_label("Select Alpha").focus()
    page.keyboard.press("Space")
    page.get_by_label("Select Beta").check()
    seed.submitted(world, name="Delta")
    expect(page.get_by_role("link", name="Delta")).to_be_visible(timeout=ARRIVES_WITHIN_MS)
    expect(page.get_by_label("Select Alpha")).to_be_checked()
    expect(page.locator("[data-num-chosen]")).to_have_text("2 selected:")
    page.get_by_role("button", name="Cancel").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Cancel 2 jobs").click()
    expect(page.get_by_text("2 jobs: The job is cancelled.")).to_be_visible()
    assert page.url.endswith("/jobs/?sort=name")
    assert [Job.objects.get(pk=job.pk).state for job in jobs] == ["cancelled", "cancelled", "queued"]
    assert not visitor.complaints


@pytest.mark.long
def test_click_inserts_parameter_of_chosen_environment(visit: Visit) -> None:
    world = seed.make_world()
    visitor = visit(world.owner)
    page = visitor.open("/jobs/new")
    page.get_by_text("All settings").click()
    field = page.locator("[name='environment.params']")
    field.fill("")
    page.locator("[name='environment.name']").select_option("tool_sums")
    page.get_by_text("Parameters of Sums with a tool").click()
    page.get_by_role("button", name="constant").click()
    expect(field).to_have_value("waits = constant")
    expect(field).to_be_focused()
    assert field.evaluate("field => field.value.slice(field.selectionStart, field.selectionEnd)") == "constant"
    page.keyboard.type("none")
    expect(field).to_have_value("waits = none")
    expect(page.locator("[data-params] .typed code")).to_have_text("waits")
    assert not visitor.complaints
