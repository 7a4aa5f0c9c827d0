"""Password resets: by mail, or by an operator's link if there is no mail, without revealing accounts."""

from datetime import timedelta
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.core.management import CommandError, call_command
from django.test import Client

from backend.accounts.addresses.proved import is_proved
from backend.accounts.models import ResetLink, User
from backend.accounts.signing_in.resets import DeadLink, make_reset, open_reset, use_reset
from backend.audit.models import AuditEntry
from backend.clock import database_now
from tests.backend.accounts.addresses.test_proved import claims_without_proof
from tests.backend.accounts.letters import letters_to, path_in
from tests.backend.accounts.test_mfa import code_of, with_second_factor

pytestmark = pytest.mark.django_db
OLD, NEW = "still-waters-run-deep", "rivers-find-their-way"
NOBODY = "nobody@example.org"


@pytest.fixture
def ada(alice: User) -> User:
    alice.set_password(OLD)
    alice.save()
    return alice


def forgets(client: Client, email: str) -> Any:
    return client.post("/accounts/password/reset/", {"email": email})


def sets(client: Client, link: str, password: str = NEW, again: str = "") -> Any:
    return client.post(link, {"password": password, "again": again or password})


def test_the_sign_in_page_leads_to_it(client: Client) -> None:
    assert 'href="/accounts/password/reset/"' in client.get("/accounts/login/").content.decode()


def test_a_letter_brings_a_link_that_sets_a_new_password_once(client: Client, ada: User, posts: None) -> None:
    elsewhere = Client()
    elsewhere.post("/accounts/login/", {"login": ada.email, "password": OLD})
    assert forgets(client, " Alice@example.org").status_code == 200
    link = path_in(letters_to(ada.email)[0])
    assert client.get(link).status_code == 200
    assert sets(client, link)["Location"] == "/accounts/login/"
    ada.refresh_from_db()
    assert ada.check_password(NEW) and "_auth_user_id" not in client.session, "it does not sign in"
    assert elsewhere.get("/jobs/").status_code == 302, "every session has ended"
    assert sets(client, link).status_code == 404, "single use"
    done = AuditEntry.objects.filter(target=ada.public_id).order_by("seq")
    assert [entry.action for entry in done][-2:] == ["password.reset_asked", "password.reset"]


def test_an_unknown_address_is_answered_alike(client: Client, ada: User, posts: None) -> None:
    known, unknown = (
        forgets(client, email).content.decode().replace(email, "WHO") for email in (ada.email, NOBODY)
    )  # fmt: skip
    assert known == unknown
    assert len(letters_to(ada.email)) == len(letters_to(NOBODY)) == 1, "and takes as long: both get a mail"
    assert "http" not in letters_to(NOBODY)[0] and ResetLink.objects.count() == 1


@pytest.mark.parametrize(
    ("password", "again", "said"),
    [(NEW, "something-else-entirely", "do not match"), ("short", "", "too short"), ("1234567890", "", "common")],
)
def test_a_new_password_is_judged(
    client: Client,
    ada: User,
    posts: None,
    password: str,
    again: str,
    said: str,
) -> None:
    forgets(client, ada.email)
    link = path_in(letters_to(ada.email)[0])
    answer = sets(client, link, password, again)
    assert answer.status_code == 422 and said in answer.content.decode()
    assert sets(client, link).status_code == 302, "a typing error does not use up the link"


def test_reset_link_ends_by_expiry_newer_link_or_closed_account(ada: User) -> None:
    now = database_now()
    first, second = make_reset(ada, now=now), make_reset(ada, now=now)
    with pytest.raises(DeadLink):
        use_reset(first, NEW, now=now)
    assert open_reset(second, now=now + timedelta(minutes=59)) and not open_reset(second, now=now + timedelta(hours=1))
    User.objects.filter(pk=ada.pk).update(is_active=False)
    assert open_reset(second, now=now) is None
    assert second not in " ".join(str(value) for value in ResetLink.objects.values_list()[0])


def test_second_factor_is_still_required(client: Client, ada: User, posts: None) -> None:
    secret = with_second_factor(ada)
    forgets(client, ada.email)
    sets(client, path_in(letters_to(ada.email)[0]))
    client.post("/accounts/login/", {"login": ada.email, "password": NEW})
    assert "_auth_user_id" not in client.session
    client.post("/accounts/2fa/authenticate/", {"code": code_of(secret)})
    assert "_auth_user_id" in client.session


def test_mailed_reset_claims_account_with_unverified_address(client: Client, ada: User, posts: None) -> None:
    """Someone signed up with another's address, or once set it on their own account."""
    claims_without_proof(ada, NOBODY)
    with pytest.raises(CommandError, match="not verified"):
        call_command("account", "reset", NOBODY)
    forgets(client, NOBODY)
    assert not is_proved(ada)
    sets(client, path_in(letters_to(NOBODY)[0]))
    client.post("/accounts/login/", {"login": NOBODY, "password": NEW})
    assert is_proved(ada) and client.session["_auth_user_id"] == str(ada.pk)


def test_oidc_user_gets_no_reset_link(client: Client, alice: User, posts: None) -> None:
    SocialAccount.objects.create(user=alice, provider="sso", uid="subject-1")
    alice.set_unusable_password()
    alice.save()
    forgets(client, alice.email)
    assert not ResetLink.objects.exists() and "single sign-on" in letters_to(alice.email)[0]
    with pytest.raises(CommandError, match="OpenID"):
        call_command("account", "reset", alice.email)


def test_where_no_mail_goes_out_an_operator_makes_the_link(client: Client, ada: User, capsys: Any) -> None:
    page = client.get("/accounts/password/reset/").content.decode()
    assert "manage.py account reset" in page and 'name="email"' not in page
    assert forgets(client, ada.email).status_code == 409
    call_command("account", "reset", ada.email)
    link = "/accounts" + capsys.readouterr().out.strip().partition("/accounts")[2]
    assert sets(client, link).status_code == 302 and User.objects.get(pk=ada.pk).check_password(NEW)
    entry = AuditEntry.objects.get(action="password.reset_asked")
    assert entry.actor == "operator" and link.split("/")[-2] not in str(entry.data)


def test_reset_mails_are_limited_and_responses_equal(client: Client, ada: User, posts: None) -> None:
    answers = {forgets(client, ada.email).status_code for _ in range(6)}
    assert answers == {200} and len(letters_to(ada.email)) == 4
