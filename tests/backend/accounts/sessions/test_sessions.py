"""A user's sessions: listed, ended by hand, when idle and after their time, with their sockets."""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.test import Client

from backend.accounts.models import SignedIn, Team, User
from backend.accounts.sessions.devices import device_of
from backend.accounts.sessions.ending import forget_sessions, sessions_of
from backend.accounts.sessions.following import idle_limit, whole_limit
from backend.audit.models import AuditEntry
from backend.clock import database_now
from backend.environment import read_environment
from backend.missing import MissingSetting
from tests.backend.browser_sockets import Watcher

pytestmark = pytest.mark.django_db
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
PASSWORD = "still-waters-run-deep"


def browser_of(user: User, words: str = FIREFOX) -> Client:
    client = Client(headers={"user-agent": words})
    client.force_login(user)
    assert client.get("/accounts/sessions/").status_code == 200
    return client


def key_of(client: Client) -> str:
    return str(client.session.session_key)


def is_in(client: Client) -> bool:
    return bool(client.get("/jobs/").status_code == 200)


def ago(client: Client, **columns: timedelta) -> None:
    now = database_now()
    SignedIn.objects.filter(pk=key_of(client)).update(**{name: now - past for name, past in columns.items()})


def test_each_browser_is_listed_and_this_one_is_marked(alice: User) -> None:
    own, _ = browser_of(alice), browser_of(alice, "curl/8.5.0")
    page = own.get("/accounts/sessions/").content.decode()
    assert page.count(">this session<") == 1 and "Firefox on Linux" in page and "curl" in page and "127.0.0.1" in page
    assert key_of(own) not in page, "a session's key is secret"
    assert page.count('name="end"') == 1, "the current session ends by signing out"


def test_sign_in_is_recorded_without_a_further_request(alice: User) -> None:
    alice.set_password(PASSWORD)
    alice.save()
    Client().post("/accounts/login/", {"login": alice.email, "password": PASSWORD})
    assert SignedIn.objects.get().user == alice


def test_one_is_ended(alice: User, team: Team) -> None:
    own, other = browser_of(alice), browser_of(alice)
    row = SignedIn.objects.get(pk=key_of(other))
    assert own.post("/accounts/sessions/", {"end": row.public_id}).status_code == 302
    assert is_in(own) and not is_in(other)
    assert AuditEntry.objects.get(team=team).action == "session.ended"


def test_sessions_of_others_are_hidden_and_protected(alice: User, bob: User, charlie: User) -> None:
    own = browser_of(alice, "Alices own machine/1")
    public_id = SignedIn.objects.get().public_id
    for stranger in (bob, charlie):
        browser = browser_of(stranger)
        assert "Alices own machine" not in browser.get("/accounts/sessions/").content.decode()
        assert browser.post("/accounts/sessions/", {"end": public_id}).status_code == 404
    assert is_in(own) and Client().post("/accounts/sessions/", {"others": "yes"}).status_code == 302


def test_all_others_are_ended_at_once(alice: User, bob: User) -> None:
    own, others, bobs = browser_of(alice), [browser_of(alice) for _ in range(3)], browser_of(bob)
    own.post("/accounts/sessions/", {"others": "yes"})
    assert is_in(own) and is_in(bobs) and not any(is_in(other) for other in others)
    assert list(sessions_of(alice, now=database_now())) == [SignedIn.objects.get(user=alice)]


def test_an_operator_ends_all_of_a_person(alice: User, bob: User, team: Team) -> None:
    own, bobs = [browser_of(alice) for _ in range(2)], browser_of(bob)
    call_command("account", "end", "Alice@example.org")
    assert is_in(bobs) and not any(is_in(each) for each in own)
    assert AuditEntry.objects.get(team=team).actor == "operator"


def test_unused_session_ends(alice: User) -> None:
    client = browser_of(alice)
    ago(client, seen_at=idle_limit() - timedelta(minutes=5))
    assert is_in(client), "and the visit is recorded"
    ago(client, seen_at=idle_limit() + timedelta(minutes=5))
    assert not is_in(client) and not Session.objects.exists()


def test_used_session_ends_after_its_limit(alice: User) -> None:
    client = browser_of(alice)
    ago(client, began_at=whole_limit() - timedelta(minutes=5))
    assert is_in(client)
    ago(client, began_at=whole_limit() + timedelta(minutes=5))
    assert not is_in(client)


def test_background_requests_do_not_prolong_a_session(alice: User) -> None:
    client = browser_of(alice)
    for dest, is_seen in (("empty", False), ("document", True)):
        ago(client, seen_at=timedelta(hours=1))
        assert client.get("/jobs/?part", headers={"sec-fetch-dest": dest}).status_code == 200
        was_seen = SignedIn.objects.get().seen_at > database_now() - timedelta(minutes=1)
        assert was_seen is is_seen


def test_a_new_password_gives_a_new_key_and_no_new_time(alice: User) -> None:
    alice.set_password(PASSWORD)
    alice.save()
    client = browser_of(alice)
    before = key_of(client)
    ago(client, began_at=timedelta(days=3))
    began_at = SignedIn.objects.get().began_at
    new = "rivers-find-their-way"
    client.post("/accounts/password/change/", {"oldpassword": PASSWORD, "password1": new, "password2": new})
    row = SignedIn.objects.get()
    assert row.pk == key_of(client) != before and row.began_at == began_at and is_in(client)


def test_only_ended_sessions_are_deleted(alice: User) -> None:
    idle, old, live, expired = (browser_of(alice) for _ in range(4))
    ago(idle, seen_at=idle_limit() + timedelta(minutes=1))
    ago(old, began_at=whole_limit() + timedelta(minutes=1))
    Session.objects.filter(pk=key_of(expired)).update(expire_date=database_now() - timedelta(minutes=1))
    keys = {name: key_of(client) for name, client in (("live", live), ("idle", idle))}
    assert forget_sessions(now=database_now()) == 3
    assert list(Session.objects.values_list("pk", flat=True)) == [keys["live"]]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("how", ["by hand", "idle"])
def test_the_sockets_of_a_session_end_with_it(how: str, watch: Callable[..., Watcher], alice: User) -> None:
    watcher: Any = watch(alice, {"watch_team": True})
    watcher.settle()
    assert watcher.http.get("/jobs/").status_code == 200
    key = key_of(watcher.http)
    if how == "by hand":
        browser_of(alice).post("/accounts/sessions/", {"end": SignedIn.objects.get(pk=key).public_id})
    else:
        ago(watcher.http, seen_at=idle_limit() + timedelta(minutes=1))
        alice.save()  # any notice triggers a new check, which also runs every half minute
    assert watcher.closed_with()[0] == 4403


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (FIREFOX, "Firefox on Linux"),
        ("Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/140.0 Safari/537.36 Edg/140.0", "Edge on Windows"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 19) AppleWebKit/605 Version/19 Mobile Safari/604", "Safari on iPhone"),
        ("", "unknown device"),
        ("<script>alert(1)</script>", "<script>alert(1)<"),
    ],
)
def test_a_browser_has_a_name(words: str, name: str) -> None:
    assert device_of(words) == name


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", "99999"])
def test_a_limit_that_is_none_is_refused(value: str) -> None:
    for name in ("LAMINAR_SESSION_IDLE_HOURS", "LAMINAR_SESSION_DAYS"):
        with pytest.raises(MissingSetting, match=f"{name}.*1 to 10000, got '{value}'"):
            read_environment(dict(os.environ) | {name: value})
