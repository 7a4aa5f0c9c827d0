"""Team pages in a real Chromium: by keyboard, narrow, dark, and without console errors."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import expect

from backend.accounts.models import ApiKey, Membership, User
from backend.jobs.queue.scheduling import schedule_pool
from backend.pages.urls import urlpatterns
from backend.webhooks.models import WebhookDelivery, WebhookEndpoint
from tests.frontend import seed
from tests.frontend.conftest import Visitor

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
NO_PAGES = {
    "client_wheel",
    "several_jobs",  # for the selected jobs
    "team_rules",
    "new_service_account",
    "set_limit",
    "request_quota",
    "operator_new_pool",
    "operator_announce",
    "operator_give_credit",
}
"""URLs that only accept POST."""
Visit = Callable[..., Visitor]


@pytest.mark.long
def test_a_key_is_made_copied_and_revoked_by_keyboard(visit: Visit) -> None:
    world = seed.make_world()
    visitor = visit(world.owner)
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = visitor.open("/jobs/")
    page.get_by_role("link", name="Team", exact=True).press("Enter")
    page.get_by_role("link", name="Keys", exact=True).press("Enter")
    page.get_by_label("Name").fill("laptop")
    page.get_by_role("button", name="Create key").press("Enter")
    secret = page.locator("#secret").inner_text()
    assert secret.startswith("lam_live_")
    page.get_by_role("button", name="Copy", exact=True).press("Enter")
    expect(page.get_by_role("button", name="copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == secret
    page.goto(visitor.server.url + "/keys/")
    expect(page.locator("#secret")).to_have_count(0)
    page.locator("summary", has_text="Revoke").press("Enter")
    page.get_by_role("button", name="Revoke key").press("Enter")
    expect(page.get_by_text("Requests with it are refused")).to_be_visible()
    assert ApiKey.objects.get().revoked_at is not None
    assert not visitor.complaints


@pytest.mark.long
def test_an_invited_person_signs_up_and_joins(visit: Visit) -> None:
    world = seed.make_world()
    visitor = visit(world.owner)
    page = visitor.open("/members/")
    page.get_by_label("Email").fill("new@example.org")
    page.get_by_role("button", name="Invite").click()
    link = page.locator("#link").inner_text()
    guest = visit()
    theirs = guest.open(link.removeprefix(guest.server.url))
    theirs.get_by_label("Password", exact=True).fill("still-waters-run-deep")
    theirs.get_by_label("Confirm password").fill("still-waters-run-deep")
    theirs.get_by_role("button", name="Create account and join").click()
    expect(theirs.get_by_text("Welcome to Reasoning")).to_be_visible()
    assert Membership.objects.filter(user=User.objects.get(email="new@example.org"), team=world.team).exists()
    assert not visitor.complaints and not guest.complaints


@pytest.mark.long
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_telephone_in_light_and_dark(visit: Visit, dark: bool) -> None:
    """Empty and full pages, with the full top bar."""
    world = seed.make_world()
    User.objects.filter(pk=world.owner.pk).update(is_staff=True)
    visitor = visit(world.owner, width=390, dark=dark)

    def fits(*paths: str) -> None:
        for path in paths:
            page = visitor.open(path)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
            bar = "(nav => nav.scrollWidth <= nav.clientWidth)(document.querySelector('.topbar nav'))"
            assert page.evaluate(bar), f"{path}: a word of the top bar is out of sight"

    paths = [f"/{page.pattern}" for page in urlpatterns if "<" not in str(page.pattern) and page.name not in NO_PAGES]
    fits(*paths, "/accounts/2fa/")
    broken = seed.failed_with_evidence(world, at=datetime.now(UTC) - timedelta(hours=2))
    seed.team_affairs(world)
    seed.submitted(world, name="w" * 100, rollout={"replicas": 60})
    webhook = WebhookEndpoint.objects.latest("created_at")
    fits(
        *paths, f"/webhooks/{webhook.pk}/", f"/jobs/{broken.pk}/", "/usage/?by=job", f"/operator/pools/{world.pool.pk}/"
    )
    assert not visitor.complaints


@pytest.mark.long
def test_the_line_moves_while_the_page_is_open(visit: Visit) -> None:
    world = seed.make_world(capacity=8)
    visitor = visit(world.owner)
    page = visitor.open("/queue/")
    expect(page.get_by_text("No jobs are waiting.")).to_be_visible()
    expect(page.locator("[data-connection]")).to_have_attribute("data-state", "live")
    seed.submitted(world, name="Big one", rollout={"replicas": 7})
    seed.submitted(world, name="Next one", rollout={"replicas": 7})
    schedule_pool(world.pool.pk, now=datetime.now(UTC))
    expect(page.get_by_role("heading", name="Why Next one waits")).to_be_visible()
    expect(page.get_by_role("img", name="8 yours")).to_be_visible()
    assert not visitor.complaints


@pytest.mark.long
def test_usage_chart_has_the_colours_of_its_legend(visit: Visit) -> None:
    world = seed.make_world()
    seed.finished(world, steps=5, at=datetime.now(UTC) - timedelta(minutes=10))
    visitor = visit(world.owner)
    page = visitor.open("/usage/")
    expect(page.locator("[data-usage-plot] .bars path").first).to_be_attached()
    drawn = page.evaluate(
        "Object.fromEntries(document.querySelector('[data-usage-plot]').data.map((t) => [t.name, t.marker.color]))"
    )
    told = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.kinds .key')].map("
        "(key) => [key.dataset.kind, getComputedStyle(key).backgroundColor]))"
    )
    assert drawn and drawn.items() <= told.items()
    assert not visitor.complaints


@pytest.mark.long
def test_webhook_is_created_tested_and_deleted_by_keyboard(visit: Visit) -> None:
    world = seed.make_world()
    visitor = visit(world.owner)
    page = visitor.open("/members/")
    page.get_by_role("link", name="Webhooks", exact=True).press("Enter")
    page.get_by_label("URL", exact=True).fill("https://hooks.example.org/laminar")
    page.get_by_role("button", name="Create webhook").press("Enter")
    assert page.locator("#secret").inner_text().startswith("whsec_")
    page.get_by_role("button", name="Send a test message").press("Enter")
    expect(page.get_by_text("Test message sent")).to_be_visible()
    expect(page.locator("#secret")).to_have_count(0)
    expect(page.get_by_text("not sent yet")).to_be_visible()
    answer = {"at": datetime.now(UTC).isoformat(), "status": 204, "error": "", "ms": 31}
    WebhookDelivery.objects.update(
        state="delivered", due_at=None, finished_at=datetime.now(UTC), num_attempts=1, attempts=[answer]
    )
    expect(page.get_by_text("204", exact=True)).to_be_visible()
    page.locator("summary", has_text="Delete").press("Enter")
    page.get_by_role("button", name="Delete webhook").press("Enter")
    expect(page.get_by_role("heading", name="No webhooks yet")).to_be_visible()
    assert not visitor.complaints
