"""OWASP ASVS 5, chapter 6.2: any long password that is not commonly known is accepted, exactly as typed."""

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.password_validation import CommonPasswordValidator
from django.test import Client

from backend.accounts.acting import Acting
from backend.accounts.models import Role, User
from backend.accounts.people.invitations import invite
from backend.clock import database_now
from tests.backend.security.conftest import ROOT

pytestmark = pytest.mark.django_db
OLD = "still-waters-run-deep"
ODD = (
    "abcdefghij klmnop",
    "48151623423141592",
    "ALLUPPERCASELETTERS",
    "  a space before and after  ",
    "mañana über straße ключ 鍵",
    "🌊" * 16,
    "<script>alert('x')</script>",
    "x" * 64 + "yz" * 64,
)


@pytest.fixture
def link(alice: User, team: Any) -> str:
    acting = Acting(user=alice, team=team, role=Role.OWNER)
    return f"/invitations/{invite(acting, email='ada@example.org', role=Role.MEMBER, now=database_now())[1]}"


def sign_in(password: str) -> bool:
    client = Client()
    client.post("/accounts/login/", {"login": "ada@example.org", "password": password})
    return "_auth_user_id" in client.session


def sign_up(link: str, password: str) -> Any:
    return Client().post(link, {"password": password, "again": password})


@pytest.mark.parametrize("password", ODD)
def test_any_characters_make_a_password_and_none_is_changed(link: str, password: str) -> None:
    assert sign_up(link, password).status_code == 302
    assert sign_in(password)
    assert not any(
        map(sign_in, {password[:-1], password.strip() + " ", password.swapcase() + "x", password[:64] + "x"})
    )


@pytest.mark.parametrize("password", ODD)
def test_a_change_takes_any_characters_too(password: str) -> None:
    User.objects.create_user("ada@example.org", OLD)
    assert change(password, current=OLD).status_code == 302
    assert sign_in(password) and not sign_in(OLD)


def test_a_change_needs_the_present_password() -> None:
    User.objects.create_user("ada@example.org", OLD)
    assert change("rivers-find-their-way", current="a-guess-of-mine").status_code == 200
    assert sign_in(OLD)


def change(password: str, *, current: str) -> Any:
    client = Client()
    client.post("/accounts/login/", {"login": "ada@example.org", "password": OLD})
    form = {"oldpassword": current, "password1": password, "password2": password}
    return client.post("/accounts/password/change/", form)


@pytest.mark.parametrize("password", ["", "x", "1234567", "xq7!Zp2", "xq7!Zp2#v"])
def test_what_is_short_is_no_password(link: str, password: str) -> None:
    assert sign_up(link, password).status_code == 422
    assert not User.objects.filter(email="ada@example.org").exists()


def test_commonly_known_password_is_refused(link: str) -> None:
    known = sorted(password for password in CommonPasswordValidator().passwords if len(password) >= 10)
    assert len(known) > 1_000
    for password in known[:: len(known) // 20]:
        assert sign_up(link, password).status_code == 422, password


class Fields(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "input" and "password" in str(dict(attrs).get("autocomplete", "")) + str(dict(attrs).get("type")):
            self.found.append(dict(attrs))


def test_password_fields_are_masked_and_allow_managers(link: str, as_ada: Callable[[], Client]) -> None:
    for sign_on, path, num_fields in (
        (Client, "/accounts/login/", 1), (Client, link, 2), (as_ada, "/accounts/password/change/", 3),
    ):  # fmt: skip
        fields = Fields()
        fields.feed(sign_on().get(path).content.decode())
        assert len(fields.found) == num_fields, path
        assert {field["type"] for field in fields.found} == {"password"}
        assert all(field.get("autocomplete") in {"current-password", "new-password"} for field in fields.found), path
        assert not any(name.startswith("on") or name == "maxlength" for field in fields.found for name in field)


@pytest.fixture
def as_ada() -> Callable[[], Client]:
    def signed_in() -> Client:
        client = Client()
        client.force_login(User.objects.create_user("ada@example.org", OLD))
        return client

    return signed_in


def test_no_script_looks_at_what_is_pasted() -> None:
    scripts = list(Path(ROOT / "frontend/static/js").rglob("*.js"))
    assert scripts and not [path for path in scripts if '"paste"' in path.read_text()]
