"""Limits by address: an IPv6 network counts as one client, at every way of signing in."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from backend.api.models import RateBucket

pytestmark = pytest.mark.django_db
DOORS: dict[str, Callable[[Client, dict[str, Any]], Any]] = {
    "signing in": lambda client, of: client.post("/accounts/login/", {"login": "a@b.org", "password": "guess"}, **of),
    "an invitation": lambda client, of: client.get("/invitations/" + "x" * 43, **of),
    "a password forgotten": lambda client, of: client.post("/accounts/password/reset/", {"email": "a@b.org"}, **of),
    "a link that resets": lambda client, of: client.get("/accounts/password/reset/" + "x" * 43 + "/", **of),
    "a link that takes back": lambda client, of: client.get("/accounts/email/cancel/" + "x" * 43 + "/", **of),
    "a key that is none": lambda client, of: client.get("/api/v1/me", HTTP_AUTHORIZATION="Bearer lam_live_x", **of),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.usefixtures("posts")
def test_a_whole_network_counts_as_one_address(door: str) -> None:
    def buckets_after(address: str) -> set[str]:
        DOORS[door](Client(), {"REMOTE_ADDR": address})
        return set(RateBucket.objects.values_list("name", flat=True))

    first = buckets_after("2001:db8:1:2::1")
    assert first, "this route counts"
    assert buckets_after("2001:db8:1:2:ffff::9") == first, "another address of the same network shares its limit"
    assert buckets_after("2001:db8:1:3::1") > first, "the next network has its own limit"
