"""An address counts only once verified: for sign-in, joining and lookup, and after a migration."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from allauth.socialaccount.models import SocialAccount
from django.core import mail as outbox
from django.test import Client

from backend.accounts.acting import Acting
from backend.accounts.addresses.proved import AddressTaken, is_proved, person_at, vouch_for
from backend.accounts.models import ApiKey, Invitation, Role, Team, User
from backend.accounts.people.invitations import NotYours, invite, join, mail, sign_up
from backend.accounts.services import create_api_key
from backend.clock import database_now
from tests.backend.accounts.test_oidc import ADA, behave, is_signed_in, issuer, return_from_provider  # noqa: F401  # fixtures
from tests.backend.conftest import NOW, Api

pytestmark = pytest.mark.django_db
PASSWORD = "still-waters-run-deep"
Behave = Callable[..., None]


def claims_without_proof(user: User, email: str) -> User:
    """As a page that no longer exists left it."""
    EmailAddress.objects.filter(user=user).delete()
    User.objects.filter(pk=user.pk).update(email=email)
    EmailAddress.objects.create(user=user, email=email, verified=False, primary=True)
    user.refresh_from_db()
    return user


def test_no_page_adds_an_address(client: Client, alice: User) -> None:
    client.force_login(alice)
    for sent in ({"action_add": "", "email": ADA}, {"action_primary": "", "email": ADA}):
        assert client.post("/accounts/email/", sent).status_code in {302, 404, 409}
    alice.refresh_from_db()
    assert alice.email == "alice@example.org"
    assert not EmailAddress.objects.filter(email=ADA).exists()


def test_an_address_that_was_never_proved_takes_no_invitation(team: Team, alice: User, charlie: User) -> None:
    _, token = invite(Acting(user=alice, team=team, role=Role.OWNER), email=ADA, role=Role.OWNER, now=NOW)
    with pytest.raises(NotYours):
        join(token, claims_without_proof(charlie, ADA), now=NOW)
    vouch_for(charlie)
    assert join(token, charlie, now=NOW).role == Role.OWNER, "the same once verified"


def test_openid_matches_only_verified_addresses(client: Client, behave: Behave, charlie: User) -> None:  # noqa: F811
    claims_without_proof(charlie, ADA)
    assert return_from_provider(client).status_code == 403 and not is_signed_in(client)
    charlie.refresh_from_db()
    assert not SocialAccount.objects.exists()
    vouch_for(charlie)
    return_from_provider(client)
    assert client.session["_auth_user_id"] == str(charlie.pk)


def test_unverified_address_cannot_sign_in(client: Client, charlie: User) -> None:
    charlie.set_password(PASSWORD)
    charlie.save()
    claims_without_proof(charlie, ADA)
    answer = client.post("/accounts/login/", {"login": ADA, "password": PASSWORD}, follow=True)
    page = answer.content.decode()
    assert not is_signed_in(client) and "manage.py account prove" in page and "mail sent to" not in page
    vouch_for(charlie)
    client.post("/accounts/login/", {"login": ADA, "password": PASSWORD})
    assert is_signed_in(client)


def test_one_address_is_proved_for_one_person(alice: User, charlie: User) -> None:
    claims_without_proof(charlie, ADA)
    other = User(email="other@example.org")
    other.save()
    vouch_for(charlie)
    other.email = ADA
    with pytest.raises(AddressTaken):
        vouch_for(other)
    assert person_at(ADA.upper()) == charlie and is_proved(alice) and not is_proved(other)


def test_signed_in_user_cannot_connect_another_identity(
    client: Client,
    behave: Behave,  # noqa: F811
    alice: User,
) -> None:
    client.force_login(alice)
    assert client.post("/accounts/oidc/sso/login/?process=connect").status_code == 404
    assert client.post("/accounts/oidc/sso/login/", {"process": "connect"}).status_code == 404
    assert client.get("/accounts/3rdparty/").status_code == 404
    assert not SocialAccount.objects.exists()


def test_a_mailed_link_is_shown_to_its_receiver_only(api: Api, posts: None) -> None:
    body = api.request("POST", "/invitations", {"email": ADA}).json()
    assert (body["mailed"], body["link"]) == (True, "") and "/invitations/" in outbox.outbox[0].body
    page = Client()
    page.force_login(Invitation.objects.get().invited_by)
    shown = page.post("/members/", {"email": "bea@example.org", "role": "member"}, follow=True).content.decode()
    assert "sent the invitation by email" in shown and "/invitations/" not in shown.split("Pending invitations")[0]


def test_refused_mail_leaves_the_link_to_the_sender(api: Api, settings: Any) -> None:
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, email_url="smtp://127.0.0.1:1")
    settings.EMAIL_BACKEND, settings.EMAIL_HOST, settings.EMAIL_PORT = (
        "django.core.mail.backends.smtp.EmailBackend",
        "127.0.0.1",
        1,
    )
    body = api.request("POST", "/invitations", {"email": ADA}).json()
    assert body["mailed"] is False and "/invitations/" in body["link"]


@pytest.mark.parametrize("by_mail", [True, False])
def test_owners_first_sign_in_ejects_the_invitations_sender(
    client: Client,
    behave: Behave,  # noqa: F811
    team: Team,
    alice: User,
    posts: None,
    by_mail: bool,
) -> None:
    """The inviter creates the invited address' account, and waits for its owner."""
    invitation, token = invite(
        Acting(user=alice, team=team, role=Role.OWNER), email=ADA, role=Role.MEMBER, now=database_now()
    )
    if by_mail:
        assert mail(invitation, token)
    user = sign_up(token, PASSWORD, now=database_now())
    create_api_key(team=team, created_by=user, name="planted")
    planted = Client()
    planted.force_login(User.objects.get(pk=user.pk))
    assert return_from_provider(client).status_code == 302 and client.session["_auth_user_id"] == str(user.pk)
    user.refresh_from_db()
    assert user.check_password(PASSWORD) is by_mail
    assert (planted.get("/jobs/").status_code == 200) is by_mail
    assert ApiKey.objects.filter(owner=user, revoked_at=None).exists() is by_mail
    assert client.get("/jobs/").status_code == 200 and user.memberships.get().team == team


def test_an_expired_invitation_proves_nothing(team: Team, alice: User) -> None:
    _, token = invite(Acting(user=alice, team=team, role=Role.OWNER), email=ADA, role=Role.OWNER, now=NOW)
    with pytest.raises(Exception, match="expired"):
        sign_up(token, PASSWORD, now=NOW + timedelta(days=8))
    assert person_at(ADA) is None
