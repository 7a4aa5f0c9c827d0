"""Sign-in: one route for all users, with limits on guesses that hold across processes and fail closed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.core.cache import cache
from django.db import OperationalError
from django.test import Client

from backend.accounts import adapter
from backend.accounts.models import SharedEntry, User
from backend.api.models import RateBucket
from backend.borders.proxies import read_networks
from tests.racing import race

pytestmark = pytest.mark.django_db
PASSWORD = "still-waters-run-deep"
TOO_OFTEN = "Too many failed"


def sign_in(client: Client, email: str, password: str, **meta: str) -> Any:
    return client.post("/accounts/login/", {"login": email, "password": password}, **meta)  # type: ignore[arg-type]


def is_signed_in(client: Client) -> bool:
    return "_auth_user_id" in client.session


def test_the_admin_has_no_sign_in_of_its_own(client: Client) -> None:
    answer = client.get("/admin/login/?next=/admin/")
    assert answer.status_code == 302
    assert answer["Location"].startswith("/accounts/login/")
    assert client.post("/admin/login/", {"username": "a@b.c", "password": "guess"}).status_code == 302


def test_too_many_guesses_block_the_right_password_too(client: Client) -> None:
    User.objects.create_user("ada@example.org", PASSWORD)
    limit = adapter.PER_ACCOUNT_AND_ADDRESS[1]
    for n in range(limit):
        assert TOO_OFTEN not in sign_in(client, "ada@example.org", f"guess-{n}").content.decode()
    assert TOO_OFTEN in sign_in(client, "Ada@Example.org ", PASSWORD).content.decode(), (
        "another spelling is the same account"
    )
    assert not is_signed_in(client)


def test_right_password_resets_the_guess_counter(client: Client) -> None:
    User.objects.create_user("ada@example.org", PASSWORD)
    limit = adapter.PER_ACCOUNT_AND_ADDRESS[1]
    for _ in range(2):
        for n in range(limit - 1):
            assert TOO_OFTEN not in sign_in(client, "ada@example.org", f"typo-{n}").content.decode()
        sign_in(client, "Ada@Example.org ", PASSWORD)
        assert is_signed_in(client)
        client.logout()


def test_frequent_sign_ins_lock_nobody_out(client: Client) -> None:
    User.objects.create_user("ada@example.org", PASSWORD)
    for _ in range(adapter.PER_ACCOUNT_AND_ADDRESS[1] + 1):
        sign_in(client, "ada@example.org", PASSWORD)
        assert is_signed_in(client)
        client.logout()


def test_right_password_keeps_guesses_of_other_addresses(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each sign-in of the user would allow further guesses."""
    monkeypatch.setattr(adapter, "PER_ACCOUNT", ("sign-in-account", 4, 300))
    User.objects.create_user("ada@example.org", PASSWORD)

    def guess(n: int) -> bool:
        return TOO_OFTEN in sign_in(client, "ada@example.org", "x", REMOTE_ADDR=f"198.51.100.{n}").content.decode()

    assert not any(guess(n) for n in range(3))
    for _ in range(3):
        sign_in(client, "ada@example.org", PASSWORD)
        assert is_signed_in(client)
        client.logout()
    assert [guess(n) for n in range(3, 5)] == [False, True]


def test_own_sign_ins_buy_no_guesses_at_others(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "PER_ADDRESS", ("sign-in-address", 4, 60))
    User.objects.create_user("eve@example.org", PASSWORD)
    blocked = []
    for n in range(3):
        blocked.append(TOO_OFTEN in sign_in(client, f"u{n}@example.org", "x").content.decode())
        sign_in(client, "eve@example.org", PASSWORD)
        client.logout()
    assert blocked == [False, False, True]


def test_guesses_from_elsewhere_do_not_lock_the_user_out(client: Client) -> None:
    User.objects.create_user("ada@example.org", PASSWORD)
    for n in range(adapter.PER_ACCOUNT_AND_ADDRESS[1] + 2):
        sign_in(client, "ada@example.org", f"guess-{n}", REMOTE_ADDR="198.51.100.7")
    sign_in(client, "ada@example.org", PASSWORD, REMOTE_ADDR="192.0.2.9")
    assert is_signed_in(client)


def test_one_account_is_guarded_against_many_addresses(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "PER_ACCOUNT", ("sign-in-account", 4, 300))
    pages = [sign_in(client, "ada@example.org", "x", REMOTE_ADDR=f"198.51.100.{n}").content.decode() for n in range(6)]
    assert [TOO_OFTEN in page for page in pages] == [False] * 4 + [True] * 2


def test_one_address_is_stopped_on_many_accounts(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "PER_ADDRESS", ("sign-in-address", 4, 60))
    pages = [sign_in(client, f"u{n}@example.org", "x").content.decode() for n in range(6)]
    assert [TOO_OFTEN in page for page in pages] == [False] * 4 + [True] * 2


def test_a_forged_header_is_no_other_address(client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "PER_ADDRESS", ("sign-in-address", 4, 60))

    def tries(header: str) -> list[bool]:
        RateBucket.objects.all().delete()
        pages = [
            sign_in(client, f"u{n}@example.org", "x", HTTP_X_FORWARDED_FOR=header.format(n=n), REMOTE_ADDR="10.0.0.1")
            for n in range(6)
        ]
        return [TOO_OFTEN in page.content.decode() for page in pages]

    assert tries("203.0.113.{n}") == [False] * 4 + [True] * 2, "no proxy is trusted"
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, trusted_proxies=read_networks("10.0.0.1"))
    assert tries("203.0.113.{n}") == [False] * 6, "the trusted proxy's header counts"
    assert tries("203.0.113.{n}, 192.0.2.1") == [False] * 4 + [True] * 2, "addresses left of it do not"


@pytest.mark.django_db(transaction=True)
@pytest.mark.long
def test_64_concurrent_sign_ins_respect_the_limit(
    in_own_connection: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "PER_ADDRESS", ("sign-in-address", 1_000, 60))
    monkeypatch.setattr(adapter, "PER_ACCOUNT", ("sign-in-account", 1_000, 60))

    def guess() -> list[bool]:
        answers = [sign_in(Client(), "nobody@example.org", "guess") for _ in range(8)]
        return [TOO_OFTEN not in answer.content.decode() for answer in answers]

    tried = [is_tried for guesses in race(*[in_own_connection(guess)] * 8) for is_tried in guesses]
    assert len(tried) == 64
    assert sum(tried) == adapter.PER_ACCOUNT_AND_ADDRESS[1]


def test_without_the_counter_sign_in_fails(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The right password, and a database that refuses to count."""
    User.objects.create_user("ada@example.org", PASSWORD)

    def away(*_: Any) -> None:
        raise OperationalError("the database is away")

    monkeypatch.setattr(adapter, "take", away)
    answer = sign_in(client, "ada@example.org", PASSWORD)
    assert answer.status_code == 503 and not is_signed_in(client)


def test_valkey_plays_no_part(client: Client, settings: Any) -> None:
    """Nothing listens at this address: neither the count nor the sign-in connects there."""
    settings.CELERY_BROKER_URL = "redis://127.0.0.1:1/0"
    User.objects.create_user("ada@example.org", PASSWORD)
    sign_in(client, "ada@example.org", PASSWORD)
    assert is_signed_in(client)


def test_unknown_account_and_wrong_password_look_alike(client: Client) -> None:
    User.objects.create_user("ada@example.org", PASSWORD)
    pages = [
        sign_in(client, email, "wrong-password").content.decode().replace(email, "WHO")
        for email in ("ada@example.org", "bea@example.org")
    ]
    errors = [page.split('role="alert"')[1].split("</div>")[0] for page in pages]
    assert errors[0] == errors[1]


def test_all_other_sessions_die_with_a_new_password(client: Client) -> None:
    user = User.objects.create_user("ada@example.org", PASSWORD)
    elsewhere = Client()
    for each in (client, elsewhere):
        sign_in(each, "ada@example.org", PASSWORD)
        assert each.get("/jobs/").status_code == 200
    new = "rivers-find-their-way"
    changed = client.post("/accounts/password/change/", {"oldpassword": PASSWORD, "password1": new, "password2": new})
    assert changed.status_code == 302
    user.refresh_from_db()
    assert user.check_password(new)
    assert client.get("/jobs/").status_code == 200, "the session that changed it stays"
    assert elsewhere.get("/jobs/").status_code == 302


def test_a_session_gets_a_new_name_at_sign_in(client: Client) -> None:
    User.objects.create_user("ada@example.org", PASSWORD)
    client.get("/accounts/login/")
    session = client.session
    session["planted"] = "yes"
    session.save()
    client.cookies["sessionid"] = planted = session.session_key or ""
    sign_in(client, "ada@example.org", PASSWORD)
    assert is_signed_in(client) and client.session.session_key != planted


def test_cache_of_allauth_is_shared_and_expires(client: Client) -> None:
    assert cache.add("lock", True, timeout=60) and not cache.add("lock", True, timeout=60)
    cache.set("history", [1.5, 2.5], timeout=60)
    assert cache.get("history") == [1.5, 2.5] and cache.get("nothing", "x") == "x"
    SharedEntry.objects.filter(key__endswith="lock").update(expires_at="2020-01-01T00:00:00Z")
    assert cache.get("lock") is None and cache.add("lock", True, timeout=60), "an expired lock is free"
    cache.delete("lock")
    assert cache.add("lock", True, timeout=None) and cache.touch("lock", 60)
    SharedEntry.objects.all().update(expires_at="2020-01-01T00:00:00Z")
    cache.set("another", 1, timeout=60)
    assert SharedEntry.objects.count() == 1, "what has expired is swept with the next write"


@pytest.mark.django_db(transaction=True)
def test_of_many_that_want_a_lock_one_gets_it(in_own_connection: Callable[..., Any]) -> None:
    got = race(*[in_own_connection(lambda: cache.add("lock", True, timeout=60))] * 8)
    assert sorted(got) == [False] * 7 + [True]
