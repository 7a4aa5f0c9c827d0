"""Every route below /accounts/ is one of ours or redirects to one: a walk over the URL resolver."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.urls.resolvers import RoutePattern

from tests.frontend.seed import World, may_sign_in

pytestmark = pytest.mark.django_db
OUR_FRAME = ('<a class="skip" href="#main">', "css/tokens.")
FILLED = {"id": "x" * 24, "str": "x" * 24, "token": "x" * 24, "int": "7", "slug": "x"}
MACHINE = {"mfa_download_recovery_codes"}
"""A text download, not a page."""


def routes(patterns: Any = None, prefix: str = "/") -> Iterator[tuple[str, str]]:
    """(name, path) of every GET route below /accounts/."""
    for pattern in get_resolver().url_patterns if patterns is None else patterns:
        assert isinstance(pattern.pattern, RoutePattern), f"{pattern.pattern}: a plain path, so that it can be walked"
        address = prefix + re.sub(r"<(?:(\w+):)?\w+>", lambda found: FILLED[found[1] or "str"], str(pattern.pattern))
        if isinstance(pattern, URLResolver):
            if prefix != "/" or address == "/accounts/":
                yield from routes(pattern.url_patterns, address)
        elif isinstance(pattern, URLPattern) and prefix != "/":
            yield pattern.name or "", address


def test_the_walk_finds_them() -> None:
    names = {name for name, _ in routes()}
    assert {"account_login", "account_reset_password", "account_email", "mfa_index", "mfa_add_webauthn"} <= names
    assert not names & {"socialaccount_connections", "socialaccount_signup", "account_reset_password_from_key"}


@pytest.mark.parametrize("is_signed_in", [False, True])
def test_each_is_drawn_in_our_frame_or_leads_to_one_that_is(world: World, is_signed_in: bool) -> None:
    client = Client(raise_request_exception=True)
    if is_signed_in:
        client.post("/accounts/login/", {"login": may_sign_in(world.owner).email, "password": "still-waters-run-deep"})
        client.post("/accounts/reauthenticate/", {"password": "still-waters-run-deep"})
    bare = []
    for name, address in routes():
        answer = client.get(address, follow=True)
        page = answer.content.decode()
        assert answer.status_code in {200, 401, 403, 404, 405}, f"{address}: {answer.status_code}"
        if answer.status_code != 405 and name not in MACHINE and not all(part in page for part in OUR_FRAME):
            bare.append(f"{name} {address}: {answer.status_code} {page[:80]!r}")
        if is_signed_in:
            assert "_auth_user_id" in client.session, f"looking at {address} signs nobody out"
    assert not bare, "\n".join(bare)
