"""Signing in: one door for everybody, and a limit on guesses."""

import pytest
from django.core.cache import cache
from django.test import Client

pytestmark = pytest.mark.django_db


def test_the_admin_has_no_sign_in_of_its_own(client: Client) -> None:
    answer = client.get("/admin/login/?next=/admin/")
    assert answer.status_code == 302
    assert answer["Location"].startswith("/accounts/login/")
    assert client.post("/admin/login/", {"username": "a@b.c", "password": "guess"}).status_code == 302


def test_who_guesses_too_often_has_to_wait(client: Client) -> None:
    cache.clear()
    guesses = [
        client.post("/accounts/login/", {"login": "someone@example.org", "password": f"guess-{n}"}) for n in range(12)
    ]
    assert guesses[0].status_code == 200
    said = guesses[-1].content.decode()
    assert guesses[-1].status_code == 429 or "Too many failed" in said
    cache.clear()
