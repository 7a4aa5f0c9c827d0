"""Open sign-up: a verified address gives an account with its own team, and reveals no other account."""

from dataclasses import replace
from typing import Any

import pytest
from django.core import mail
from django.test import Client

from backend.accounts.addresses.proved import is_proved, person_at
from backend.accounts.models import Role, User
from tests.backend.accounts.letters import letters_to, path_in

pytestmark = pytest.mark.django_db
NEW, PASSWORD = "new@example.org", "still-waters-run-deep"


@pytest.fixture
def is_open(settings: Any, posts: None) -> None:
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, open_sign_up=True)


def signs_up(client: Client, email: str, password: str = PASSWORD) -> Any:
    sent = {"email": email, "password1": password, "password2": password}
    return client.post("/accounts/signup/", sent, follow=True)


def test_it_is_closed_unless_it_is_opened(client: Client, posts: None) -> None:
    assert b"by invitation" in signs_up(client, NEW).content and not User.objects.exists() and not mail.outbox


def test_sign_up_needs_the_mailed_verification(client: Client, is_open: None) -> None:
    assert b"Verify your address" in signs_up(client, NEW).content
    user = User.objects.get(email=NEW)
    assert not is_proved(user) and client.get("/jobs/").status_code == 302
    Client().post("/accounts/login/", {"login": NEW, "password": PASSWORD})
    link = path_in(letters_to(NEW)[0].split("Thank you")[0])
    stranger = Client()
    assert b"Verify address" in stranger.get(link).content and not is_proved(user), "GET changes nothing"
    stranger.post(link)
    assert is_proved(user) and stranger.get("/jobs/").status_code == 302, "the mail does not sign in"
    client.post("/accounts/login/", {"login": NEW, "password": PASSWORD})
    assert client.get("/jobs/").status_code == 200 and user.memberships.get().role == Role.OWNER


def test_an_address_that_is_here_already_is_answered_alike(client: Client, is_open: None, alice: User) -> None:
    fresh, known = (signs_up(Client(), email).content for email in (NEW, alice.email))
    assert fresh == known
    assert len(letters_to(NEW)) == len(letters_to(alice.email)) == 1
    assert "already exists" in letters_to(alice.email)[0] and person_at(alice.email) == alice


def test_user_is_mailed_about_password_and_second_factor(client: Client, posts: None, alice: User) -> None:
    alice.set_password(PASSWORD)
    alice.save()
    client.post("/accounts/login/", {"login": alice.email, "password": PASSWORD})
    new = "rivers-find-their-way"
    client.post("/accounts/password/change/", {"oldpassword": PASSWORD, "password1": new, "password2": new})
    assert "password has been changed" in letters_to(alice.email)[0]
