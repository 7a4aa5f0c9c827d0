"""OWASP ASVS 5, chapters 3, 4, 13 and 14: what every response has, and what no response reveals."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from backend.accounts.models import User
from backend.environment import read_environment
from backend.pages.urls import urlpatterns
from tests.backend.security.conftest import ROOT

pytestmark = pytest.mark.django_db
PASSWORD = "still-waters-run-deep"
STATIC = "/static/css/base.css"
PAGES = ("/jobs/", "/members/", "/keys/", "/accounts/login/", "/accounts/password/change/", "/nothing/here")
FOR_PROGRAMS = ("/api/v1/me", "/api/v1/jobs", "/api/v1/nothing", "/healthz")
EVERYTHING = (*PAGES, *FOR_PROGRAMS, "/help/", "/api/v1/docs", "/metrics", STATIC)
Browsers = Callable[..., Client]


@pytest.fixture
def ada(team: Any) -> User:
    user = User.objects.create_user("ada@example.org", PASSWORD)
    user.memberships.create(team=team, role="owner")
    return user


@pytest.fixture
def browser(ada: User) -> Client:
    client = Client()
    client.force_login(ada)
    return client


def test_cookies_are_host_only_secure_and_httponly(https_client: Browsers, ada: User) -> None:
    client = https_client()
    client.get("/accounts/login/", secure=True)
    client.post("/accounts/login/", {"login": ada.email, "password": PASSWORD}, secure=True)
    client.post("/members/", {"email": "wrong"}, secure=True)
    assert {"__Host-sessionid", "__Host-csrftoken"} == set(client.cookies)
    for cookie in client.cookies.values():
        assert (cookie["path"], cookie["domain"], cookie["samesite"]) == ("/", "", "Lax")
        assert cookie["secure"] and cookie["httponly"]


def test_messages_are_not_stored_in_cookies(browser: Client, team: Any) -> None:
    answer = browser.post("/members/rules?team=" + team.pk, {"requires_mfa": "yes"})
    assert answer.status_code == 302, "it leaves a message for the next page"
    assert set(browser.cookies) == {"sessionid"}


@pytest.mark.long
def test_every_response_has_hsts_for_a_year_with_subdomains(https_client: Browsers) -> None:
    client = https_client()
    policies = {path: client.get(path, secure=True)["Strict-Transport-Security"] for path in EVERYTHING}
    assert set(policies.values()) == {"max-age=31536000; includeSubDomains"}, policies


def test_people_are_led_to_https(https_client: Browsers) -> None:
    client = https_client()
    for path in PAGES:
        answer = client.get(path)
        assert (answer.status_code, answer["Location"]) == (301, f"https://testserver{path}")


@pytest.mark.parametrize("path", ["/api/v1/me", "/api/v1/nothing", "/internal/engine/heartbeat", "/metrics"])
def test_program_over_http_is_refused_without_redirect(https_client: Browsers, api: Any, path: str) -> None:
    client, key = https_client(), {"Authorization": f"Bearer {api.key}"}
    answer = client.get(path, headers=key | {"X-Forwarded-Proto": "http", "X-Forwarded-For": "192.0.2.9"})
    assert (answer.status_code, answer.json()["code"]) == (403, "https_only")
    assert client.get("/api/v1/me", headers=key, secure=True).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("post", "/internal/engine/facts", 401),  # its own response: there is no token here
        ("post", "/internal/engine/heartbeat", 401),
        ("get", "/internal/engine/assets/ast_1/manifest", 401),
        ("get", "/healthz", 200),
        ("get", "/metrics", 200),
    ],
)
def test_inside_the_web_server_answers_over_http_itself(
    https_client: Browsers, db: None, method: str, path: str, status: int
) -> None:
    """A redirect would send the engine to a port without a certificate, and its job would seem never to start."""
    answer = getattr(https_client(), method)(path)
    assert (answer.status_code, answer.get("Location")) == (status, None)
    for told in ("/", "/accounts/login/"):
        assert https_client().get(told).status_code == 301, "browsers are redirected"


def test_private_responses_are_not_cached(browser: Client, api: Any) -> None:
    for path in (*PAGES, *FOR_PROGRAMS, "/metrics"):
        answer = browser.get(path, headers={"Authorization": f"Bearer {api.key}"})
        assert "no-store" in answer["Cache-Control"], path
    assert "no-store" not in browser.get(STATIC)["Cache-Control"], "public files may be cached"


@pytest.mark.long
def test_every_response_has_its_type_and_nosniff(browser: Client) -> None:
    for path in EVERYTHING:
        answer = browser.get(path)
        assert answer["X-Content-Type-Options"] == "nosniff", path
        assert answer["Referrer-Policy"] == "same-origin", path
        kind, _, charset = answer["Content-Type"].partition(";")
        assert "utf-8" in charset or not kind.startswith("text/"), path


@pytest.mark.long
def test_no_answer_can_be_framed_or_given_another_base_or_plugin(browser: Client) -> None:
    for path in EVERYTHING:
        policy = dict(part.split(" ", 1) for part in browser.get(path)["Content-Security-Policy"].split("; "))
        assert {policy[name] for name in ("object-src", "base-uri", "frame-ancestors")} == {"'none'"}, path


def test_no_other_origin_may_read_an_answer(browser: Client) -> None:
    asking = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST"}
    for path in EVERYTHING:
        for answer in (browser.get(path, headers=asking), browser.options(path, headers=asking)):
            assert not [name for name in answer.headers if name.startswith("Access-Control-")], path


def test_no_page_takes_a_form_that_it_did_not_give_out(ada: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(ada)
    for pattern in urlpatterns:
        path = "/" + "/".join("x" if "<" in part else part for part in str(pattern.pattern).split("/"))
        assert client.post(path, {"email": "bea@example.org", "role": "owner"}).status_code == 403, path


def test_nothing_that_was_sent_is_traced_back(browser: Client) -> None:
    for path in EVERYTHING:
        answer = browser.generic("TRACE", path, headers={"X-Planted": "canary"})
        assert answer.status_code == 405 and "TRACE" not in answer["Allow"], path
        assert b"canary" not in b"".join(answer), path


def test_a_parameter_given_twice_means_one_thing_everywhere(
    browser: Client, api: Any, other_team: Any, team: Any
) -> None:
    """The last value, in the API and on pages, for every reader: the checked value is the used one."""
    assert api.client.get("/api/v1/jobs?limit=0&limit=1", headers=api._headers()).status_code == 200
    assert api.client.get("/api/v1/jobs?limit=1&limit=0", headers=api._headers()).status_code == 422
    for first, last, status in ((other_team, team, 200), (team, other_team, 404)):
        assert browser.get(f"/members/?team={first.pk}&team={last.pk}").status_code == status
        assert browser.post(f"/members/?team={last.pk}", {"team": first.pk}).status_code == (
            422 if status == 200 else 404
        )


def test_only_static_files_are_served_and_no_folder_is_listed() -> None:
    client = Client()
    for path in (
        *("/static/", "/static/css/", "/static/js/lib/", "/static/css/base.css.bak", "/static/../manage.py"),
        *("/static/%2e%2e/manage.py", "/static/..%2fmanage.py", "/.git/config", "/.env", "/manage.py"),
    ):
        assert client.get(path).status_code == 404, path


@pytest.mark.parametrize("where", ["https://elsewhere.example/", "//elsewhere.example/", "javascript:alert(1)",
                                   "/\\elsewhere.example", "https:elsewhere.example"])  # fmt: skip
@pytest.mark.parametrize("door", ["/accounts/login/", "/accounts/logout/"])
def test_no_redirect_leads_to_another_host(ada: User, browser: Client, door: str, where: str) -> None:
    client = browser if "logout" in door else Client()
    answer = client.post(door, {"login": ada.email, "password": PASSWORD, "next": where})
    assert answer.status_code == 302
    assert answer["Location"].startswith("/") and not answer["Location"].startswith(("//", "/\\"))


def test_tracebacks_are_off_by_default(https_environment: dict[str, str]) -> None:
    without = {name: value for name, value in https_environment.items() if name != "LAMINAR_DEBUG"}
    assert read_environment(without).debug is False


@pytest.mark.long
def test_the_deployment_check_finds_nothing(https_environment: dict[str, str]) -> None:
    command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    environment = https_environment | {"LAMINAR_SECRET_KEY": "0123456789abcdef" * 4}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
