"""Keys, members and invitations in a real Chromium: by keyboard, narrow, dark, and without a complaint."""

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from backend.accounts.models import ApiKey, Membership, User
from tests.frontend import seed
from tests.frontend.conftest import Visitor

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
Visit = Callable[..., Visitor]


def test_a_key_is_made_copied_and_revoked_by_keyboard(visit: Visit) -> None:
    world = seed.make_world()
    visitor = visit(world.owner)
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = visitor.open("/jobs/")
    page.get_by_role("link", name="Keys", exact=True).press("Enter")
    page.get_by_label("Name").fill("laptop")
    page.get_by_role("button", name="Make the key").press("Enter")
    secret = page.locator("#secret").inner_text()
    assert secret.startswith("lam_live_")
    page.get_by_role("button", name="Copy", exact=True).press("Enter")
    expect(page.get_by_role("button", name="copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == secret
    page.goto(visitor.server.url + "/keys/")
    expect(page.locator("#secret")).to_have_count(0)
    page.locator("summary", has_text="Revoke").press("Enter")
    page.get_by_role("button", name="Revoke it now").press("Enter")
    expect(page.get_by_text("No request with this key is answered")).to_be_visible()
    assert ApiKey.objects.get().revoked_at is not None
    assert not visitor.complaints


def test_an_invited_person_signs_up_and_joins(visit: Visit) -> None:
    world = seed.make_world()
    visitor = visit(world.owner)
    page = visitor.open("/members/")
    page.get_by_label("E-mail").fill("new@example.org")
    page.get_by_role("button", name="Invite").click()
    link = page.locator("#link").inner_text()
    guest = visit()
    theirs = guest.open(link.removeprefix(guest.server.url))
    theirs.get_by_label("Password").fill("still-waters-run-deep")
    theirs.get_by_label("The same again").fill("still-waters-run-deep")
    theirs.get_by_role("button", name="Make the account and join").click()
    expect(theirs.get_by_text("Welcome to Reasoning")).to_be_visible()
    assert Membership.objects.filter(user=User.objects.get(email="new@example.org"), team=world.team).exists()
    assert not visitor.complaints and not guest.complaints


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("path", ["/keys/", "/members/", "/accounts/2fa/"])
def test_it_fits_a_telephone_in_light_and_dark(visit: Visit, path: str, dark: bool) -> None:
    world = seed.make_world()
    visitor = visit(world.owner, width=390, dark=dark)
    page = visitor.open(path)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not visitor.complaints
