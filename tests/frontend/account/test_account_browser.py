"""Account pages in a real Chromium: sign-in by link, address change, sessions, narrow and dark."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.core.management import call_command
from playwright.sync_api import expect

from backend.accounts.addresses import changes
from backend.accounts.models import SignedIn, User
from backend.clock import database_now
from tests.frontend import seed
from tests.frontend.conftest import Visitor

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
Visit = Callable[..., Visitor]
NEW = "rivers-find-their-way"


def signs_in(visitor: Visitor, email: str, password: str) -> None:
    page = visitor.open("/accounts/login/")
    page.get_by_label("Email").fill(email)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Home")).to_be_visible()


@pytest.mark.long
def test_without_mail_somebody_comes_in_by_the_operators_link(visit: Visit, capsys: pytest.CaptureFixture[str]) -> None:
    world = seed.make_world()
    seed.may_sign_in(world.owner)
    visitor = visit()
    page = visitor.open("/accounts/login/")
    page.get_by_role("link", name="Forgot your password?").click()
    expect(page.get_by_text("This site sends no mail")).to_be_visible()
    call_command("account", "reset", world.owner.email)
    page = visitor.open("/accounts" + capsys.readouterr().out.strip().partition("/accounts")[2])
    page.get_by_label("Password", exact=True).fill(NEW)
    page.get_by_label("Confirm password").fill(NEW)
    page.get_by_role("button", name="Set password").click()
    expect(page.get_by_text("Password changed")).to_be_visible()
    signs_in(visitor, world.owner.email, NEW)
    assert not visitor.complaints


@pytest.mark.long
def test_a_move_is_confirmed_and_taken_back(visit: Visit) -> None:
    world = seed.make_world()
    seed.may_sign_in(world.owner)
    visitor = visit()
    signs_in(visitor, world.owner.email, seed.PASSWORD)
    asked = changes.request_change(world.owner, "new@example.org", now=database_now(), by_operator=True)
    page = visitor.open("/accounts/email/")
    expect(page.get_by_role("heading", name="Change pending")).to_be_visible()
    page = visitor.open(f"/accounts/email/confirm/{asked.token}/")
    page.get_by_role("button", name="Change to new@example.org").click()
    expect(page.get_by_text("Sign in with new@example.org from now on")).to_be_visible()
    owner = visit()
    theirs = owner.open("/accounts/email/cancel/" + changes.cancel_link_of(asked.change).split("/cancel/")[1])
    theirs.get_by_role("button", name="Revert and end all sessions").click()
    expect(theirs.get_by_role("heading", name="Address change reverted")).to_be_visible()
    assert User.objects.get(pk=world.owner.pk).email == "ada@example.org"
    visitor.open("/jobs/")
    expect(page).to_have_url(re.compile("/accounts/login/"))
    assert not visitor.complaints and not owner.complaints


@pytest.mark.long
def test_ending_another_session_closes_its_socket(visit: Visit) -> None:
    world = seed.make_world()
    seed.may_sign_in(world.owner)
    here, there = visit(), visit()
    for visitor in (here, there):
        signs_in(visitor, world.owner.email, seed.PASSWORD)
    there.provokes("401|403")
    expect(there.page.locator("[data-connection]")).to_have_attribute("data-state", "live")
    page = here.open("/accounts/sessions/")
    expect(page.get_by_text("this session")).to_have_count(1)
    expect(page.get_by_role("button", name="End the session of")).to_have_count(1)
    page.get_by_role("button", name="End all others").click()
    expect(page.get_by_text("1 other session ended")).to_be_visible()
    expect(there.page.locator("[data-connection]")).not_to_have_attribute("data-state", "live")
    there.open("/jobs/")
    expect(there.page).to_have_url(re.compile("/accounts/login/"))
    assert not here.complaints


@pytest.mark.long
def test_an_open_page_that_nobody_uses_does_not_keep_its_session(visit: Visit) -> None:
    """The list refreshes on every change, without user input."""
    world = seed.make_world()
    seed.may_sign_in(world.owner)
    visitor = visit()
    signs_in(visitor, world.owner.email, seed.PASSWORD)
    expect(visitor.page.locator("[data-connection]")).to_have_attribute("data-state", "live")
    long_ago = database_now() - timedelta(hours=2)
    SignedIn.objects.update(seen_at=long_ago)
    seed.submitted(world, name="Something new")
    expect(visitor.page.get_by_role("link", name="Something new")).to_be_visible()
    assert SignedIn.objects.get().seen_at == long_ago


@pytest.mark.long
def test_every_page_of_the_account_fits_a_telephone(visit: Visit) -> None:
    """Signed-in pages in dark mode, sign-in pages in light mode: both use the same style sheets."""
    world = seed.make_world()
    asked = changes.request_change(world.owner, "new@example.org", now=database_now())
    cancel = "/accounts" + changes.cancel_link_of(asked.change).partition("/accounts")[2]
    inside = ("email/", f"email/confirm/{asked.token}/", "password/change/", "2fa/", "2fa/webauthn/", "sessions/")
    outside = ("login/", "password/reset/", "password/reset/x/", "confirm-email/", "confirm-email/x/", "inactive/")
    pages = {world.owner: [f"/accounts/{path}" for path in inside], None: [f"/accounts/{path}" for path in outside]}
    pages[None].append(cancel)
    for user, paths in pages.items():
        visitor = visit(user, width=390, dark=user is not None)
        visitor.provokes("404")
        for path in paths:
            page = visitor.open(path)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
            tabs = page.evaluate("[...document.querySelectorAll('.tabs')].every((t) => t.scrollWidth <= t.clientWidth)")
            assert tabs, f"{path}: a tab is out of sight"
        assert not visitor.unexpected
