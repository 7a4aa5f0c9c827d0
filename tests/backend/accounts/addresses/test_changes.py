"""Changing the address: confirmed from the new one, reported to the old one and cancellable there, without revealing
other accounts."""

import contextlib
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from backend.accounts.addresses import changes
from backend.accounts.addresses.proved import is_proved, person_at
from backend.accounts.models import AddressChange, User
from backend.audit.models import AuditEntry
from backend.clock import database_now
from tests.backend.accounts.letters import letters_to, path_in
from tests.racing import race

pytestmark = pytest.mark.django_db
PASSWORD, NEW = "still-waters-run-deep", "new@example.org"


@pytest.fixture
def ada(alice: User) -> Client:
    """Alice's browser, with a recently entered password."""
    alice.set_password(PASSWORD)
    alice.save()
    return signed_in(alice)


def signed_in(user: User) -> Client:
    client = Client()
    client.post("/accounts/login/", {"login": user.email, "password": PASSWORD})
    assert "_auth_user_id" in client.session
    client.post("/accounts/reauthenticate/", {"password": PASSWORD})
    return client


def asks(client: Client, email: str = NEW) -> Any:
    return client.post("/accounts/email/", {"email": email})


def email_of(user: User) -> str:
    return User.objects.get(pk=user.pk).email


def actions() -> list[str]:
    return list(
        AuditEntry.objects.filter(action__startswith="address").order_by("seq").values_list("action", flat=True)
    )


def test_a_wish_moves_nothing_until_the_new_address_answers(ada: Client, alice: User, posts: None) -> None:
    assert asks(ada).status_code == 302
    assert email_of(alice) == "alice@example.org" and person_at(NEW) is None
    link = path_in(letters_to(NEW)[0])
    assert ada.get(link).status_code == 200 and email_of(alice) == "alice@example.org", "GET changes nothing"
    assert ada.post(link)["Location"] == "/accounts/email/"
    alice.refresh_from_db()
    assert alice.email == NEW and is_proved(alice)
    assert list(EmailAddress.objects.filter(user=alice).values_list("email", flat=True)) == [NEW]
    assert actions() == ["address.change_asked", "address.changed"]
    assert ada.post(link).status_code == 404, "single use"
    assert "no longer with this address" in letters_to("alice@example.org")[1]


def test_it_needs_the_password_again(alice: User, posts: None) -> None:
    alice.set_password(PASSWORD)
    alice.save()
    stolen = Client()
    stolen.force_login(alice)
    assert "/reauthenticate/" in asks(stolen)["Location"]
    assert not AddressChange.objects.exists()


def test_invitation_link_is_useless_to_others(ada: Client, alice: User, charlie: User, posts: None) -> None:
    asks(ada)
    link = path_in(letters_to(NEW)[0])
    charlie.set_password(PASSWORD)
    charlie.save()
    assert signed_in(charlie).post(link).status_code == 404
    assert Client().post(link)["Location"].startswith("/accounts/login/")
    assert {email_of(alice), email_of(charlie)} == {"alice@example.org", "charlie@example.org"}


def test_an_address_in_use_is_answered_like_a_fresh_one(ada: Client, alice: User, charlie: User, posts: None) -> None:
    answers, num_queries = [], set()
    asks(ada, "before@example.org")  # each of the two replaces an open request
    for email in (NEW, charlie.email):
        with CaptureQueriesContext(connection) as queries:
            answer = asks(ada, email)
        num_queries.add(len(queries))
        page = ada.get("/accounts/email/").content.decode().replace(email, "WHERE")
        answers.append((answer.status_code, answer["Location"], page.split("csrfmiddlewaretoken")[0]))
        assert len(letters_to(email)) == 1
    assert answers[0] == answers[1] and len(num_queries) == 1, "the time is equal too: as many queries and mails"
    to_old = [letter.replace(NEW, "W").replace(charlie.email, "W") for letter in letters_to(alice.email)[1:]]
    assert to_old[0].split("http")[0] == to_old[1].split("http")[0]
    assert "http" not in letters_to(charlie.email)[0], "its owner is notified, without a link"
    assert email_of(alice) == "alice@example.org"


def test_one_that_was_taken_meanwhile_is_refused(ada: Client, alice: User, posts: None) -> None:
    asks(ada)
    User.objects.create_user(NEW)
    assert ada.post(path_in(letters_to(NEW)[0])).status_code == 404
    assert email_of(alice) == "alice@example.org"


@pytest.mark.parametrize("is_done", [False, True])
def test_old_address_cancels_and_ends_all_sessions(
    ada: Client,
    alice: User,
    posts: None,
    is_done: bool,
) -> None:
    """An intruder with the password changes the address; the owner reads the mail to the old address."""
    asks(ada)
    proof = path_in(letters_to(NEW)[0])
    if is_done:
        ada.post(proof)
        ada.post("/accounts/email/", {"email": "further@example.org"})
    link, owner = path_in(letters_to("alice@example.org")[0]), Client()
    assert owner.get(link).status_code == 200 and ada.get("/jobs/").status_code == 200
    assert b"Address change reverted" in owner.post(link).content
    alice.refresh_from_db()
    assert alice.email == "alice@example.org" and is_proved(alice) and person_at(NEW) is None
    assert not alice.has_usable_password() and ada.get("/jobs/").status_code == 302
    assert owner.post(link).status_code == 404, "single use"
    for other in letters_to(NEW):
        if is_done and "cancel" in other:
            assert owner.post(path_in(other)).status_code == 404, "later requests are cancelled too"
    owner.post("/accounts/password/reset/", {"email": "alice@example.org"})
    owner.post(path_in(letters_to("alice@example.org")[-1]), {"password": PASSWORD * 2, "again": PASSWORD * 2})
    assert User.objects.get(pk=alice.pk).check_password(PASSWORD * 2), "the owner can sign in again"
    assert actions()[-1] == "address.change_cancelled"


def test_links_end(alice: User) -> None:
    now = database_now()
    request = changes.request_change(alice, NEW, now=now)
    token = changes.cancel_link_of(request.change).rstrip("/").rpartition("/")[2]
    assert changes.change_to_confirm(request.token, alice, now=now + timedelta(hours=23)) is not None
    with pytest.raises(changes.DeadLink):
        changes.confirm_change(request.token, alice, now=now + timedelta(hours=25))
    assert changes.change_to_cancel(token, now=now + timedelta(days=6)) is not None
    with pytest.raises(changes.DeadLink):
        changes.cancel_change(token, now=now + timedelta(days=8))
    with pytest.raises(changes.DeadLink):
        changes.cancel_change(token[:-1] + "x", now=now)


def test_a_new_wish_kills_the_one_before(alice: User) -> None:
    now = database_now()
    first = changes.request_change(alice, "first@example.org", now=now)
    changes.request_change(alice, NEW, now=now)
    with pytest.raises(changes.DeadLink):
        changes.confirm_change(first.token, alice, now=now)


def test_withdrawn_change_moves_nothing_and_stays_cancellable(ada: Client, alice: User, posts: None) -> None:
    asks(ada)
    ada.post("/accounts/email/", {"withdraw": "yes"})
    assert ada.post(path_in(letters_to(NEW)[0])).status_code == 404 and email_of(alice) == "alice@example.org"
    assert actions() == ["address.change_asked", "address.change_withdrawn"]
    Client().post(path_in(letters_to("alice@example.org")[0]))
    assert ada.get("/jobs/").status_code == 302, "the requester is signed out, even after withdrawing"


def test_what_is_stored_opens_nothing(alice: User) -> None:
    request = changes.request_change(alice, NEW, now=database_now())
    stored = " ".join(str(value) for value in AddressChange.objects.values_list()[0])
    log_text = " ".join(str(entry.data) for entry in AuditEntry.objects.all())
    assert request.token not in stored + log_text


def test_address_page_without_mail_points_to_the_operator(ada: Client, alice: User, capsys: Any) -> None:
    assert "manage.py account move" in ada.get("/accounts/email/").content.decode()
    assert asks(ada).status_code == 409 and not AddressChange.objects.exists()
    call_command("account", "move", "Alice@example.org", NEW)
    link = "/accounts" + capsys.readouterr().out.strip().partition("/accounts")[2]
    assert ada.post(link).status_code == 302 and email_of(alice) == NEW
    assert ada.post(link).status_code == 404
    assert AuditEntry.objects.get(action="address.change_asked").actor == "operator"


def test_operator_cannot_move_to_a_taken_address(alice: User, charlie: User) -> None:
    with pytest.raises(CommandError, match="another account uses"):
        call_command("account", "move", alice.email, charlie.email)
    with pytest.raises(CommandError, match="no account has"):
        call_command("account", "move", "nobody@example.org", NEW)
    assert not AddressChange.objects.exists()


def test_wishes_are_counted(ada: Client, posts: None) -> None:
    answers = [asks(ada, f"{n}@example.org").status_code for n in range(7)]
    assert answers == [302] * 5 + [429] * 2


@pytest.mark.django_db(transaction=True)
def test_of_two_that_prove_one_address_at_once_one_has_it(
    alice: User, charlie: User, in_own_connection: Callable[..., Any]
) -> None:
    now: datetime = database_now()
    tokens = [(user, changes.request_change(user, NEW, now=now).token) for user in (alice, charlie)]
    done = []

    def confirm(user: User, token: str) -> None:
        with contextlib.suppress(changes.DeadLink):
            done.append(changes.confirm_change(token, user, now=now).user_id)

    race(*(partial(in_own_connection(confirm), *pair) for pair in tokens))
    assert len(done) == 1 and list(User.objects.filter(email=NEW).values_list("pk", flat=True)) == done
    assert AddressChange.objects.filter(done_at=None, cancelled_at=None).count() == 1
