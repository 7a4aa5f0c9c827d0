"""Second factors: required at sign-in, single-use, rate-limited, encrypted at rest, and a team's requirement."""

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import (
    TOTP,
    format_hotp_value,
    generate_totp_secret,
    hotp_value,
    yield_hotp_counters_from_time,
)
from django.test import Client

from backend.accounts.acting import Acting
from backend.accounts.models import Role, Team, User
from backend.accounts.people.teams import change_team
from backend.accounts.services import recognise_api_key
from backend.clock import database_now
from backend.errors import Denied
from tests.backend.conftest import NOW

pytestmark = pytest.mark.django_db
PASSWORD = "still-waters-run-deep"
Keys = Callable[..., str]


def with_second_factor(user: User) -> str:
    """Its TOTP secret."""
    secret: str = generate_totp_secret()
    TOTP.activate(user, secret)
    return secret


def code_of(secret: str) -> str:
    """For the half minute at which these tests fix the clock (`conftest.py`)."""
    return str(format_hotp_value(hotp_value(secret, *yield_hotp_counters_from_time())))


def sign_in(client: Client, user: User) -> Any:
    user.set_password(PASSWORD)
    user.save()
    return client.post("/accounts/login/", {"login": user.email, "password": PASSWORD})


def says_the_password_again(client: Client) -> None:
    assert client.post("/accounts/reauthenticate/", {"password": PASSWORD}).status_code == 302


def is_signed_in(client: Client) -> bool:
    return "_auth_user_id" in client.session


def test_the_password_alone_opens_nothing(client: Client, alice: User) -> None:
    secret = with_second_factor(alice)
    prompt = sign_in(client, alice)
    assert prompt["Location"].startswith("/accounts/2fa/authenticate/") and not is_signed_in(client)
    assert client.get("/jobs/").status_code == 302
    assert b"authenticator code" in client.get("/accounts/2fa/authenticate/").content
    client.post("/accounts/2fa/authenticate/", {"code": "000000"})
    assert not is_signed_in(client)
    client.post("/accounts/2fa/authenticate/", {"code": code_of(secret)})
    assert is_signed_in(client)


def test_a_code_works_once(client: Client, alice: User) -> None:
    code = code_of(with_second_factor(alice))
    for each, opens in ((client, True), (Client(), False)):
        sign_in(each, alice)
        each.post("/accounts/2fa/authenticate/", {"code": code})
        assert is_signed_in(each) is opens


def test_a_recovery_code_works_once(client: Client, alice: User) -> None:
    with_second_factor(alice)
    code = RecoveryCodes.activate(alice).get_unused_codes()[0]
    for each, opens in ((client, True), (Client(), False)):
        sign_in(each, alice)
        each.post("/accounts/2fa/authenticate/", {"code": code})
        assert is_signed_in(each) is opens


def test_guessed_codes_are_limited_per_user_across_sessions(alice: User) -> None:
    secret = with_second_factor(alice)
    for n in range(5):
        client = Client()
        sign_in(client, alice)
        client.post("/accounts/2fa/authenticate/", {"code": f"{n:06}"}, REMOTE_ADDR=f"198.51.100.{n}")
    client = Client()
    sign_in(client, alice)
    answer = client.post("/accounts/2fa/authenticate/", {"code": code_of(secret)})
    assert not is_signed_in(client) and b"Too many failed" in answer.content


def test_the_stored_secret_is_no_use_without_our_key(alice: User) -> None:
    secret = with_second_factor(alice)
    codes = RecoveryCodes.activate(alice)
    stored = " ".join(str(row.data) for row in Authenticator.objects.all())
    assert secret not in stored and not any(code in stored for code in codes.generate_codes())
    assert (
        codes.get_unused_codes() == RecoveryCodes(Authenticator.objects.get(type="recovery_codes")).get_unused_codes()
    )


def test_mfa_setup_asks_for_password_and_shows_recovery_codes(client: Client, alice: User) -> None:
    alice.set_password(PASSWORD)
    alice.save()
    client.force_login(alice)
    redirect = client.get("/accounts/2fa/totp/activate/")
    assert redirect.status_code == 302 and "reauthenticate" in redirect["Location"], "a stolen session adds nothing"
    says_the_password_again(client)
    page = client.get("/accounts/2fa/totp/activate/")
    assert page.status_code == 200 and b"data:image/svg+xml" in page.content
    secret = client.session["mfa.totp.secret"]
    done = client.post("/accounts/2fa/totp/activate/", {"code": code_of(secret)})
    assert done["Location"] == "/accounts/2fa/recovery-codes/"
    assert client.get(done["Location"]).content.decode().count("\n") > 10
    assert client.get("/accounts/2fa/").status_code == 200


def test_admin_without_required_factor_counts_as_member(
    client: Client, team: Team, alice: User, adam: User, bob: User, make_key: Keys
) -> None:
    text, own = make_key(adam), make_key(alice)
    with_second_factor(alice)
    change_team(Acting(user=alice, team=team, role=Role.OWNER), requires_mfa=True, now=NOW)
    caller = recognise_api_key(text, now=database_now())
    assert caller is not None and caller.role == Role.MEMBER and "team:write" not in caller.scopes
    caller = recognise_api_key(own, now=database_now())
    assert caller is not None and caller.role == Role.OWNER
    client.force_login(adam)
    page = client.get("/members/").content.decode()
    assert "requires owners and admins to use a second factor" in page and "Invite a member" not in page
    assert client.post(f"/members/{bob.public_id}/change", {"role": "viewer"}).status_code == 302
    assert bob.memberships.get().role == Role.MEMBER
    with_second_factor(adam)
    assert "Invite a member" in client.get("/members/").content.decode()
    caller = recognise_api_key(text, now=database_now())
    assert caller is not None and caller.role == Role.ADMIN


def test_recovery_codes_alone_are_no_second_factor(team: Team, alice: User) -> None:
    RecoveryCodes.activate(alice)
    with pytest.raises(Denied):
        change_team(Acting(user=alice, team=team, role=Role.OWNER), requires_mfa=True, now=NOW)


def test_an_admin_cannot_take_the_demand_back(team: Team, alice: User, adam: User) -> None:
    for user in (alice, adam):
        with_second_factor(user)
    change_team(Acting(user=alice, team=team, role=Role.OWNER), requires_mfa=True, now=NOW)
    with pytest.raises(Denied):
        change_team(Acting(user=adam, team=team, role=Role.ADMIN), requires_mfa=False, now=NOW)


def test_the_page_for_security_keys_runs_no_inline_script(client: Client, alice: User) -> None:
    sign_in(client, alice)
    says_the_password_again(client)
    answer = client.get("/accounts/2fa/webauthn/add/")
    page = answer.content.decode()
    assert answer.status_code == 200, answer.headers
    assert re.search(r"/mfa/js/webauthn\.\w+\.js", page) and 'id="mfa_webauthn_add"' in page
    scripts = [part.split(">")[0] for part in page.split("<script")[1:]]
    assert all("src=" in script or 'type="application/json"' in script for script in scripts)


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["code", "recovery code"])
def test_of_racing_sign_ins_one_code_opens_one(
    alice: User, kind: str, in_own_connection: Callable[..., Callable[..., None]]
) -> None:
    secret = with_second_factor(alice)
    code = code_of(secret) if kind == "code" else RecoveryCodes.activate(alice).get_unused_codes()[0]
    clients = [Client() for _ in range(4)]
    for each in clients:
        sign_in(each, alice)
    ready = threading.Barrier(len(clients))

    def give_code(each: Client) -> None:
        ready.wait(60)
        each.post("/accounts/2fa/authenticate/", {"code": code})

    threads = [threading.Thread(target=in_own_connection(give_code), args=[each]) for each in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(map(is_signed_in, clients)) == 1


@pytest.mark.parametrize(
    "path", ["totp/deactivate/", "recovery-codes/generate/", "recovery-codes/", "recovery-codes/download/",
             "webauthn/add/", "totp/activate/"]
)  # fmt: skip
def test_stolen_session_changes_and_reads_no_factor(client: Client, alice: User, path: str) -> None:
    with_second_factor(alice)
    RecoveryCodes.activate(alice)
    alice.set_password(PASSWORD)
    alice.save()
    client.force_login(alice)
    before = sorted(Authenticator.objects.values_list("type", "data"), key=str)
    for send in (client.get, client.post):
        answer = send(f"/accounts/2fa/{path}")
        is_away = answer.status_code == 302 and not answer.headers["Location"].endswith(path)
        assert is_away or answer.status_code == 405, (send, answer.status_code)
    assert sorted(Authenticator.objects.values_list("type", "data"), key=str) == before
