"""Sign-in with an OpenID provider: a real one, over HTTP, with real signatures, and every way in which it may cheat."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client

from backend.accounts.acting import Acting
from backend.accounts.models import Membership, Role, Team, User
from backend.accounts.operators.acting import Operator
from backend.accounts.operators.people import disconnect_identity
from backend.accounts.people.invitations import invite
from backend.clock import database_now
from tests.backend.accounts.openid_provider import CLIENT_ID, running, turn_on

pytestmark = pytest.mark.django_db
ADA = "ada@example.org"
Answer = Any  # the test client's own response type has no public name


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with running() as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def behave(issuer: str, settings: Any) -> Callable[..., None]:
    """Configures the provider in the settings, and sets its behaviour."""
    turn_on(settings, issuer)
    tell(issuer)
    return partial(tell, issuer)


def tell(address: str, /, **behaviour: Any) -> None:
    request = urllib.request.Request(f"{address}/behave", json.dumps(behaviour).encode(), method="POST")
    urllib.request.urlopen(request, timeout=60).close()


@pytest.fixture
def olga(db: None) -> Operator:
    return Operator.acting(User.objects.create_user("olga@example.org", is_staff=True))


@pytest.fixture
def rotate(issuer: str) -> Callable[[], None]:
    def rotate() -> None:
        urllib.request.urlopen(urllib.request.Request(f"{issuer}/rotate", b"", method="POST"), timeout=60).close()

    return rotate


def return_from_provider(client: Client, *, change: Callable[[str], str] = lambda address: address) -> Answer:
    """To the provider and back, as a browser. `change` may tamper with the redirect back."""
    left = client.post("/accounts/oidc/sso/login/?next=/jobs/")
    assert left.status_code == 302, left.content
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        opener.open(left["Location"], timeout=60)
        raise AssertionError("the provider sends people back")
    except urllib.error.HTTPError as answer:
        back = urlsplit(change(answer.headers["Location"]))
    return client.get(f"{back.path}?{back.query}")


def is_signed_in(client: Client) -> bool:
    return "_auth_user_id" in client.session


def test_account_with_verified_address_signs_in(client: Client, behave: Callable[..., None], team: Team) -> None:
    user = User.objects.create_user(ADA)
    answer = return_from_provider(client)
    assert (answer.status_code, answer["Location"]) == (302, "/jobs/")
    assert client.session["_auth_user_id"] == str(user.pk)
    assert User.objects.count() == 1
    client.logout()
    behave(claims={"email": "renamed@example.org"})
    return_from_provider(client)
    assert client.session["_auth_user_id"] == str(user.pk), "from now on the subject decides, not the address"


def test_the_request_carries_state_nonce_and_pkce(client: Client, behave: Callable[..., None]) -> None:
    seen = []
    for _ in range(2):
        location = client.post("/accounts/oidc/sso/login/?auth_params=nonce%3Dmine%26prompt%3Dnone&scope=admin")[
            "Location"
        ]
        seen.append({key: values[0] for key, values in parse_qs(urlsplit(location).query).items()})
    assert all(query["code_challenge_method"] == "S256" for query in seen)
    assert "prompt" not in seen[0] and set(seen[0]["scope"].split()) == {"openid", "profile", "email"}
    for name in ("state", "nonce", "code_challenge"):
        assert len({query[name] for query in seen} | {"mine"}) == 3, "new each time, and never the caller's"


LIES: dict[str, dict[str, Any]] = {
    "signed by a stranger under our provider's key id": {"sign": "stranger"},
    "not signed at all": {"sign": "none"},
    "signed with the client's secret": {"sign": "client-secret"},
    "the nonce of another sign-in": {"claims": {"nonce": "another"}},
    "no nonce": {"drop": ["nonce"]},
    "made for another client": {"claims": {"aud": "somebody-else"}},
    "made for several, authorised to another": {"claims": {"aud": [CLIENT_ID, "other"], "azp": "other"}},
    "made by another issuer": {"claims": {"iss": "https://evil.example"}},
    "metadata of another issuer": {"issuer": "https://evil.example", "claims": {"iss": "https://evil.example"}},
    "expired": {"claims": {"exp": 1_000_000_000}},
    "without an end": {"drop": ["exp"]},
    "without a subject": {"drop": ["sub"]},
    "an address that is not verified": {"claims": {"email_verified": False}},
    "an address that is verified in words": {"claims": {"email_verified": "true"}},
    "an address without a verification claim": {"drop": ["email_verified"]},
    "userinfo of somebody else": {"drop": ["email"], "userinfo": {"sub": "x", "email": ADA, "email_verified": True}},
    "no address anywhere": {"drop": ["email"], "userinfo": {"sub": "subject-1"}},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_provider_that_lies_opens_nothing(client: Client, behave: Callable[..., None], lie: str) -> None:
    User.objects.create_user(ADA)
    behave(**LIES[lie])
    answer = return_from_provider(client)
    assert not is_signed_in(client)
    assert answer.status_code in {200, 401, 403} and b"You are not signed in" in answer.content
    behave()
    return_from_provider(client)
    assert is_signed_in(client), "the same without the fault succeeds"


def test_new_key_counts_at_once_and_retired_one_no_more(
    client: Client, behave: Callable[..., None], rotate: Callable[[], None]
) -> None:
    User.objects.create_user(ADA)
    return_from_provider(client)
    assert is_signed_in(client)
    client.logout()
    rotate()
    behave(sign="retired")
    return_from_provider(client)
    assert not is_signed_in(client)
    for behaviour in ({}, {"keys": "both"}, {"keys": "both", "sign": "retired"}):
        behave(**behaviour)
        return_from_provider(client)
        assert is_signed_in(client), behaviour
        client.logout()


@pytest.mark.parametrize("keys", ["twice", "encryption", "none"])
def test_ambiguous_or_unusable_key_opens_nothing(client: Client, behave: Callable[..., None], keys: str) -> None:
    User.objects.create_user(ADA)
    behave(keys=keys)
    assert b"You are not signed in" in return_from_provider(client).content
    assert not is_signed_in(client)


def test_code_counts_once_and_for_its_browser_only(client: Client, behave: Callable[..., None]) -> None:
    """Also where the provider itself checks neither."""
    User.objects.create_user(ADA)
    behave(lenient=True)
    used: list[str] = []

    def keep(address: str) -> str:
        used.append(address)
        return address

    return_from_provider(client, change=keep)
    assert is_signed_in(client)
    client.logout()
    back = urlsplit(used[0])
    assert b"You are not signed in" in client.get(f"{back.path}?{back.query}").content, "its state is used"
    stolen = parse_qs(back.query)["code"][0]

    def inject(address: str) -> str:
        own = parse_qs(urlsplit(address).query)
        return address.replace(own["code"][0], stolen)

    thief = Client()
    assert b"You are not signed in" in return_from_provider(thief, change=inject).content, "its nonce is another's"
    assert not is_signed_in(client) and not is_signed_in(thief)


def test_second_identity_with_the_same_address_is_refused(
    client: Client, behave: Callable[..., None], olga: Operator
) -> None:
    """The company has given the address to someone new."""
    user = User.objects.create_user(ADA)
    return_from_provider(client)
    newcomer = Client()
    behave(claims={"sub": "subject-2"})
    assert b"another identity" in return_from_provider(newcomer).content
    assert not is_signed_in(newcomer) and is_signed_in(client)
    disconnect_identity(olga, user.public_id, now=database_now())
    return_from_provider(newcomer)
    assert newcomer.session["_auth_user_id"] == str(user.pk)
    assert client.get("/jobs/")["Location"].startswith("/accounts/login/"), "the sessions of the first ended"
    behave()
    assert b"another identity" in return_from_provider(client).content


def test_subject_of_another_issuer_is_another_identity(
    client: Client, behave: Callable[..., None], settings: Any
) -> None:
    User.objects.create_user(ADA)
    eve = User.objects.create_user("eve@example.org")
    return_from_provider(client)
    with running() as port:
        turn_on(settings, f"http://127.0.0.1:{port}")
        tell(f"http://127.0.0.1:{port}", claims={"email": "eve@example.org"})
        other = Client()
        return_from_provider(other)
        assert other.session["_auth_user_id"] == str(eve.pk), "not Ada, whose subject it is at the first issuer"


def test_subject_may_be_long(client: Client, behave: Callable[..., None]) -> None:
    user = User.objects.create_user(ADA)
    behave(claims={"sub": "x" * 255})
    for _ in range(2):
        return_from_provider(client)
        assert client.session["_auth_user_id"] == str(user.pk)
        client.logout()


def test_an_address_may_come_from_userinfo_of_the_same_subject(client: Client, behave: Callable[..., None]) -> None:
    User.objects.create_user(ADA)
    behave(drop=["email"], userinfo={"sub": "subject-1", "email": ADA, "email_verified": True})
    return_from_provider(client)
    assert is_signed_in(client)


def test_a_way_back_that_this_browser_did_not_begin_is_refused(client: Client, behave: Callable[..., None]) -> None:
    User.objects.create_user(ADA)
    victim = Client()
    addresses: list[str] = []

    def keep(address: str) -> str:
        addresses.append(address)
        return address.replace("state=", "state=x")

    assert b"You are not signed in" in return_from_provider(client, change=keep).content
    back = urlsplit(addresses[0])
    assert b"You are not signed in" in victim.get(f"{back.path}?{back.query}").content
    assert not is_signed_in(victim) and not is_signed_in(client)


def test_account_needs_an_invitation(client: Client, behave: Callable[..., None]) -> None:
    assert b"by invitation" in return_from_provider(client).content
    assert not User.objects.exists() and not is_signed_in(client)


def test_invited_oidc_user_joins_without_a_password(
    client: Client, behave: Callable[..., None], team: Team, alice: User
) -> None:
    owner = Acting(user=alice, team=team, role=Role.OWNER)
    _, token = invite(owner, email=ADA, role=Role.VIEWER, now=database_now())
    page = client.get(f"/invitations/{token}").content.decode()
    assert "/accounts/oidc/sso/login/" in page
    return_from_provider(client)
    user = User.objects.get(email=ADA)
    assert is_signed_in(client) and not user.has_usable_password()
    assert not user.memberships.exists(), "an invitation is accepted, not assumed"
    client.post(f"/invitations/{token}")
    assert Membership.objects.get(user=user, team=team).role == Role.VIEWER


def test_only_the_operators_domains_come_in(client: Client, behave: Callable[..., None], settings: Any) -> None:
    User.objects.create_user(ADA)
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, oidc_domains=("elsewhere.org",))
    assert return_from_provider(client).status_code == 403 and not is_signed_in(client)
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, oidc_domains=("elsewhere.org", "example.org"))
    return_from_provider(client)
    assert is_signed_in(client)


def test_a_closed_account_stays_closed(client: Client, behave: Callable[..., None]) -> None:
    user = User.objects.create_user(ADA)
    return_from_provider(client)
    client.logout()
    User.objects.filter(pk=user.pk).update(is_active=False)
    assert return_from_provider(client).status_code == 403 and not is_signed_in(client)


def test_it_is_off_unless_it_is_configured(client: Client) -> None:
    assert client.post("/accounts/oidc/sso/login/").status_code == 404
    assert "Sign in with" not in client.get("/accounts/login/").content.decode()


def test_the_sign_in_page_offers_it(client: Client, behave: Callable[..., None]) -> None:
    page = client.get("/accounts/login/?next=/help/").content.decode()
    assert "Sign in with Example" in page and "/accounts/oidc/sso/login/?next=%2Fhelp%2F" in page
