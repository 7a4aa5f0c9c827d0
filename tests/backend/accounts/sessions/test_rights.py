"""What a session may, for a socket: exactly what a request with its cookie may."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.models import Session
from django.core import signing
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from backend.accounts.models import Membership, SignedIn, Team, User
from backend.accounts.sessions.following import idle_limit, whole_limit
from backend.accounts.sessions.rights import rights_of
from backend.clock import database_now

pytestmark = pytest.mark.django_db


def key_of(browser: Client) -> str:
    return browser.cookies["sessionid"].value


@pytest.fixture
def browser(bob: User) -> Client:
    browser = Client()
    browser.force_login(bob)
    assert browser.get("/jobs/").status_code == 200
    return browser


def nothing(browser: Client) -> None:
    pass


def lose_the_user(browser: Client) -> None:
    session = browser.session
    del session[SESSION_KEY]
    session.save()


def change_hash(browser: Client) -> None:
    session = browser.session
    session[HASH_SESSION_KEY] = "of another password"
    session.save()


def expire(browser: Client) -> None:
    Session.objects.update(expire_date=database_now() - timedelta(seconds=1))


def sign_with_another_key(browser: Client) -> None:
    text = signing.dumps(
        dict(browser.session), key="another", salt="django.contrib.sessions.SessionStore", compress=True
    )
    Session.objects.update(session_data=text)


def disable(browser: Client) -> None:
    User.objects.update(is_active=False)


def delete_user(browser: Client) -> None:
    User.objects.filter(email__startswith="bob").delete()


def lie_idle(browser: Client) -> None:
    SignedIn.objects.update(seen_at=database_now() - idle_limit() - timedelta(seconds=1))


def grow_old(browser: Client) -> None:
    SignedIn.objects.update(began_at=database_now() - whole_limit() - timedelta(seconds=1))


def lose_its_row(browser: Client) -> None:
    SignedIn.objects.all().delete()


def sign_out(browser: Client) -> None:
    Session.objects.all().delete()


@pytest.mark.parametrize(
    "happens",
    [nothing, lose_the_user, change_hash, expire, sign_with_another_key, disable, delete_user, lie_idle, grow_old,
     lose_its_row, sign_out],
    ids=lambda happens: happens.__name__,
)  # fmt: skip
def test_session_has_rights_exactly_if_a_page_opens(browser: Client, happens: Callable[[Client], None]) -> None:
    happens(browser)
    rights = rights_of([key_of(browser)])
    opens = browser.get("/jobs/").status_code == 200
    assert (key_of(browser) in rights) == opens == (happens in (nothing, lose_its_row))


def test_rights_name_the_user_and_all_teams(browser: Client, bob: User) -> None:
    team = Team.objects.create(name="Second")
    Membership.objects.create(user=bob, team=team, role="viewer")
    [rights] = rights_of([key_of(browser)]).values()
    assert (rights.user_id, rights.public_id) == (bob.pk, bob.public_id)
    assert rights.teams == set(bob.memberships.values_list("team_id", flat=True)) >= {team.pk}


def test_many_sessions_take_as_many_queries_as_one(browser: Client, alice: User, bob: User) -> None:
    keys = [key_of(browser), "", "x" * 500]
    for user in (alice, bob) * 3:
        another = Client()
        another.force_login(user)
        keys.append(key_of(another))
    with CaptureQueriesContext(connection) as of_one:
        rights_of(keys[:1])
    with CaptureQueriesContext(connection) as of_all:
        assert len(rights_of(keys)) == 7
    assert len(of_all) == len(of_one) == 5
    assert all(query["sql"].startswith("SELECT") for query in of_all)
