"""A security key from its registration to its removal: Chromium's virtual authenticator, the real pages and policy."""

import re
import socket
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl

import pytest
from allauth.mfa.models import Authenticator
from playwright.sync_api import Browser, Page, expect

from tests.frontend import seed
from tests.frontend.conftest import GIVES_UP_AFTER_MS, Server, come_to_rest

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.django_db(transaction=True)]
KEY = {
    "protocol": "ctap2", "transport": "internal", "hasResidentKey": True, "hasUserVerification": True,
    "isUserVerified": True, "automaticPresenceSimulation": True,
}  # fmt: skip


class NamedServer(Server):
    """A security key belongs to a name, never to an address."""

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}"

    def _environment(self) -> dict[str, str]:
        return super()._environment() | {"LAMINAR_ALLOWED_HOSTS": "localhost"}


@pytest.fixture
def site(transactional_db: None) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = NamedServer(port=free.getsockname()[1])
    server.start()
    yield server
    come_to_rest()
    server.stop()


Arrive = Callable[[], tuple[Page, list[str]]]


@pytest.fixture
def arrive(chromium: Browser, site: Server) -> Iterator[Arrive]:
    """A browser of its own, and the complaints of its console."""
    contexts = []

    def open_browser() -> tuple[Page, list[str]]:
        context, complaints = chromium.new_context(base_url=site.url), list[str]()
        context.set_default_timeout(GIVES_UP_AFTER_MS)
        context.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        contexts.append(context)
        return context.new_page(), complaints

    yield open_browser
    for context in contexts:
        context.close()


def plug_in(page: Page, *credentials: Any) -> Callable[[], list[Any]]:
    """Plugs a virtual key in; returns a reader of its credentials."""
    tools = page.context.new_cdp_session(page)
    tools.send("WebAuthn.enable")
    key = {"authenticatorId": tools.send("WebAuthn.addVirtualAuthenticator", {"options": KEY})["authenticatorId"]}
    for credential in credentials:
        tools.send("WebAuthn.addCredential", key | {"credential": credential})
    return lambda: list(tools.send("WebAuthn.getCredentials", key)["credentials"])


def give_password(page: Page, email: str) -> None:
    page.goto("/accounts/login/")
    page.get_by_label("Email").fill(email)
    page.get_by_label("Password").fill(seed.PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page).not_to_have_url(re.compile("/accounts/login/"))


def confirm_password(page: Page) -> None:
    expect(page.get_by_role("heading", name="Confirm it is you")).to_be_visible()
    page.get_by_label("Password").fill(seed.PASSWORD)
    page.get_by_role("button", name="Confirm").click()


def is_signed_in(page: Page) -> bool:
    return "/accounts/" not in page.goto("/jobs/").url  # type: ignore[union-attr]  # a navigation has a response


def test_security_key_is_required_and_works_once_per_challenge(arrive: Arrive) -> None:
    world = seed.make_world()
    email = seed.may_sign_in(world.owner).email
    page, complaints = arrive()
    read_credentials = plug_in(page)
    give_password(page, email)
    page.goto("/accounts/2fa/webauthn/add/")
    confirm_password(page)
    page.get_by_label("Name").fill("blue key")
    page.get_by_role("button", name="Add").click()
    expect(page).to_have_url(re.compile("/accounts/2fa/"))
    expect(page.get_by_text("added", exact=False).first).to_be_visible()
    [stored] = Authenticator.objects.filter(user=world.owner, type="webauthn")
    [credential] = read_credentials()

    other, _ = arrive()
    give_password(other, email)
    expect(other.get_by_role("button", name="Use a security key")).to_be_visible()
    assert not is_signed_in(other), "the password alone opens nothing"
    plug_in(other)
    other.goto("/accounts/2fa/authenticate/")
    other.get_by_role("button", name="Use a security key").click()
    expect(other.get_by_text("this key is not registered here")).to_be_visible()
    assert not is_signed_in(other), "another key opens nothing"

    third, trouble = arrive()
    plug_in(third, credential)
    give_password(third, email)
    with third.expect_request(lambda request: request.method == "POST") as sent:
        third.get_by_role("button", name="Use a security key").click()
    expect(third).not_to_have_url(re.compile("/accounts/"))
    assert is_signed_in(third)

    replaying, _ = arrive()
    give_password(replaying, email)
    token = replaying.locator("#webauthn_form [name=csrfmiddlewaretoken]").input_value()
    replayed: dict[str, str | float | bool] = dict(parse_qsl(sent.value.post_data or ""))
    replayed["csrfmiddlewaretoken"] = token
    assert replayed["credential"]
    replaying.request.post("/accounts/2fa/authenticate/", form=replayed, headers={"Referer": replaying.url})
    assert not is_signed_in(replaying), "a response of one challenge answers no other"
    assert not complaints and not trouble
    page.goto(f"/accounts/2fa/webauthn/keys/{stored.pk}/remove/")
    page.get_by_role("button", name="Remove").click()
    expect(page).to_have_url(re.compile("/accounts/2fa/"))
    assert not Authenticator.objects.filter(user=world.owner).exists()
