"""Invitations: single-use, for one address, until they expire; and the page that accepts them."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from backend.accounts.acting import Acting
from backend.accounts.models import Invitation, Membership, Role, Team, User
from backend.accounts.people.invitations import LASTS, NotYours, invite, join, open_invitation, revoke_invitation
from backend.audit.models import AuditEntry
from backend.clock import database_now
from backend.errors import Denied, NotFound, Refusal
from backend.pages.team.invitation_views import TRIES
from tests.backend.conftest import NOW, Api
from tests.racing import race

pytestmark = pytest.mark.django_db
ADDRESS, PASSWORD = "new@example.org", "still-waters-run-deep"


@pytest.fixture
def owner(team: Team, alice: User) -> Acting:
    return Acting(user=alice, team=team, role=Role.OWNER)


@pytest.fixture
def token(owner: Acting) -> str:
    """Of a live invitation by the database's clock, which the page uses."""
    return invite(owner, email=ADDRESS, role=Role.MEMBER, now=database_now())[1]


def test_a_program_invites_and_gets_the_link_once(api: Api, team: Team) -> None:
    created = api.request("POST", "/invitations", {"email": "New@Example.org", "role": "viewer"})
    body = created.json()
    assert (created.status_code, body["email"], body["role"], body["mailed"]) == (201, ADDRESS, "viewer", False)
    assert body["link"].startswith("http://127.0.0.1:8000/invitations/")
    token = body["link"].rpartition("/")[2]
    listed = api.get("/invitations")
    assert token not in listed.content.decode() and listed.json()["data"][0]["id"] == body["id"]
    row = Invitation.objects.get()
    assert token not in " ".join(str(value) for value in Invitation.objects.values_list()[0])
    assert row.team == team
    assert token not in " ".join(str(entry.data) for entry in AuditEntry.objects.all())


@pytest.mark.parametrize(
    "email", ["", "ada", "ada@", "a b@example.org", "ada@example", "x" * 250 + "@e.org", "a\x00@e.org"]
)
def test_malformed_address_is_refused(api: Api, email: str) -> None:
    assert api.request("POST", "/invitations", {"email": email}).status_code == 422
    assert not Invitation.objects.exists()


def test_admin_invites_no_owner_and_member_cannot_invite(team: Team, adam: User, bob: User) -> None:
    for user, role in ((adam, Role.OWNER), (bob, Role.VIEWER)):
        acting = Acting.person(user, team)
        assert acting is not None
        with pytest.raises(Denied):
            invite(acting, email=ADDRESS, role=role, now=NOW)


def test_a_member_is_not_invited_twice(api: Api, bob: User) -> None:
    answer = api.request("POST", "/invitations", {"email": bob.email.upper()})
    assert (answer.status_code, answer.json()["code"]) == (409, "already_member")


def test_a_stolen_link_is_useless_for_another_address(owner: Acting, charlie: User) -> None:
    _, token = invite(owner, email=ADDRESS, role=Role.ADMIN, now=NOW)
    with pytest.raises(NotYours):
        join(token, charlie, now=NOW)
    assert not Membership.objects.filter(team=owner.team, user=charlie).exists()
    assert open_invitation(token, now=NOW) is not None, "and it still works for the invited user"


def test_it_works_once(owner: Acting) -> None:
    _, token = invite(owner, email=ADDRESS, role=Role.VIEWER, now=NOW)
    user = User.objects.create_user(ADDRESS)
    assert join(token, user, now=NOW).role == Role.VIEWER
    Membership.objects.filter(user=user).delete()
    with pytest.raises(NotFound):
        join(token, user, now=NOW)


@pytest.mark.parametrize("end", ["expired", "revoked", "replaced"])
def test_it_ends(owner: Acting, end: str) -> None:
    invitation, token = invite(owner, email=ADDRESS, role=Role.VIEWER, now=NOW)
    user, later = User.objects.create_user(ADDRESS), NOW + timedelta(minutes=1)
    if end == "expired":
        later = NOW + LASTS
    elif end == "revoked":
        revoke_invitation(owner, invitation.pk, now=later)
    else:
        invite(owner, email=ADDRESS, role=Role.ADMIN, now=later)
    with pytest.raises(NotFound):
        join(token, user, now=later)
    assert not Membership.objects.filter(user=user).exists()


@pytest.mark.django_db(transaction=True)
def test_of_two_that_use_it_at_once_one_joins(team: Team, alice: User, in_own_connection: Callable[..., Any]) -> None:
    owner = Acting(user=alice, team=team, role=Role.OWNER)
    _, token = invite(owner, email=ADDRESS, role=Role.VIEWER, now=NOW)
    user = User.objects.create_user(ADDRESS)

    def use() -> str:
        try:
            join(token, user, now=NOW)
        except Refusal as refusal:
            return refusal.code
        return "joined"

    outcomes = race(*[in_own_connection(use)] * 8)
    assert sorted(outcomes) == ["joined"] + ["not_found"] * 7
    assert AuditEntry.objects.filter(action="member.joined").count() == 1


def test_a_new_person_signs_up_and_is_in(client: Client, team: Team, token: str) -> None:
    page = client.get(f"/invitations/{token}").content.decode()
    assert ADDRESS in page and "Create account and join" in page
    assert not User.objects.filter(email=ADDRESS).exists(), "nothing happens on GET"
    answer = client.post(
        f"/invitations/{token}",
        {"password": PASSWORD, "again": PASSWORD, "email": "thief@example.org", "role": "owner"},
    )
    assert (answer.status_code, answer["Location"]) == (302, "/jobs/")
    user = User.objects.get(email=ADDRESS)
    assert Membership.objects.get(user=user, team=team).role == Role.MEMBER
    assert client.get("/jobs/").status_code == 200, "signed in"
    assert client.get(f"/invitations/{token}").status_code == 404, "used"
    assert not User.objects.filter(email="thief@example.org").exists()


@pytest.mark.parametrize(("password", "again"), [("short", "short"), ("password123", "password123"), (PASSWORD, "x")])
def test_weak_or_mistyped_password_creates_no_user(client: Client, token: str, password: str, again: str) -> None:
    answer = client.post(f"/invitations/{token}", {"password": password, "again": again})
    assert answer.status_code == 422 and b'role="alert"' in answer.content
    assert not User.objects.filter(email=ADDRESS).exists()


def test_invitee_with_account_must_sign_in_to_join(client: Client, token: str) -> None:
    user = User.objects.create_user(ADDRESS, PASSWORD)
    assert b"sign in" in client.get(f"/invitations/{token}").content
    assert (
        client.post(f"/invitations/{token}", {"password": "another-password", "again": "another-password"}).status_code
        == 409
    )
    user.refresh_from_db()
    assert user.check_password(PASSWORD)
    tried = AuditEntry.objects.filter(action="sign_in.refused").latest("at")
    assert "second account" in str(tried.data), "recorded"
    client.force_login(user)
    assert client.post(f"/invitations/{token}").status_code == 302
    assert Membership.objects.filter(user=user).exists()


def test_invitation_link_does_not_reveal_existing_account(client: Client, charlie: User, token: str) -> None:
    """An owner or admin can invite any address, and holds the link if there is no mail."""

    def told(browser: Client) -> str:
        return re.sub(
            r'name="csrfmiddlewaretoken" value="\w+"', "", browser.get(f"/invitations/{token}").content.decode()
        )

    charlies = Client()
    charlies.force_login(charlie)
    before = told(client), told(charlies)
    User.objects.create_user(ADDRESS, PASSWORD)
    assert (told(client), told(charlies)) == before


def test_page_refuses_another_user(client: Client, charlie: User, token: str) -> None:
    client.force_login(charlie)
    page = client.get(f"/invitations/{token}")
    assert b"This invitation is for a different address" in page.content
    assert client.post(f"/invitations/{token}").status_code == 403
    assert not Membership.objects.filter(user=charlie, team__name="Ants").exists()


def test_unknown_link_reveals_nothing(client: Client) -> None:
    answer = client.get("/invitations/" + "x" * 43)
    assert answer.status_code == 404 and b"no longer valid" in answer.content


def test_guesses_are_counted(client: Client) -> None:
    _, number, _ = TRIES
    answers = (client.get(f"/invitations/{n}").status_code for n in range(20 * number))
    assert next(tried for tried, status in enumerate(answers) if status == 429) >= number


def test_sign_up_needs_an_invitation(client: Client) -> None:
    answer = client.post("/accounts/signup/", {"email": "x@example.org", "password1": PASSWORD, "password2": PASSWORD})
    assert b"by invitation" in answer.content and not User.objects.exists()
