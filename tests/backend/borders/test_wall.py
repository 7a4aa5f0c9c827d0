"""Unstorable text reaches no view: NUL in a URL, a query, a form, a cookie of a page or of a socket."""

from typing import Any

import pytest
from django.test import Client

from backend.accounts.models import User
from backend.borders.types import is_id, read_count, read_day, read_moment
from backend.borders.wall import without_hostile_cookies
from backend.jobs.models import Job

NUL_COOKIE = '"a\\000b"'
"""Escaped as in a cookie; Django's parser decodes it."""


@pytest.fixture
def page(alice: User) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(alice)
    return client


@pytest.mark.parametrize(
    "address",
    ["/jobs/%00/", "/jobs/a%00b/live", "/webhooks/%ED%A0%80/", "/keys/%00/revoke", "/invitations/%00", "/x%00"],
)
def test_a_nul_in_an_address_is_an_unknown_address(page: Client, address: str) -> None:
    assert page.get(address).status_code == 404


@pytest.mark.parametrize(
    "query", ["?q=%00", "?team=%00", "?%00=1", "?state=%00", "?page=%00", "?since=%00", "?job=a%00"]
)
def test_a_nul_in_a_query_is_refused(page: Client, query: str) -> None:
    for path in ("/jobs/", "/queue/", "/usage/", "/audit/", "/keys/", "/accounts/login/", "/admin/"):
        assert page.get(path + query).status_code == 400, path


def test_a_nul_in_a_form_is_refused(page: Client) -> None:
    for path in ("/keys/", "/members/", "/webhooks/", "/jobs/new", "/accounts/login/", "/accounts/email/"):
        assert page.post(path, {"name": "a\x00b"}).status_code == 400, path
        assert page.post(path, {"a\x00b": "1"}).status_code == 400, path


@pytest.mark.parametrize("name", ["sessionid", "csrftoken", "messages"])
def test_hostile_cookie_signs_out(db: None, name: str) -> None:
    client = Client(raise_request_exception=False, headers={"Cookie": f"{name}={NUL_COOKIE}"})
    assert client.get("/jobs/").status_code == 302
    assert client.get("/api/v1/me").status_code == 401


@pytest.mark.asyncio
async def test_a_socket_is_opened_without_its_hostile_cookie() -> None:
    seen: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.append([name for name, _ in scope["headers"]])

    for cookie in (f"sessionid={NUL_COOKIE}", "sessionid=abc; theme=dark"):
        scope = {"type": "websocket", "headers": [(b"host", b"x"), (b"cookie", cookie.encode())]}
        await without_hostile_cookies(inner)(scope, None, None)  # type: ignore[arg-type]  # nothing is received
    assert seen == [[b"host"], [b"host", b"cookie"]]


BEYOND = ["0001-01-01", "9999-12-31", "0000-01-01", "-1", "99999-01-01", "x", "", "٢٠٢٦-٠١-٠١"]


@pytest.mark.parametrize("day", BEYOND)
def test_no_day_beyond_the_calendar_breaks_a_page(page: Client, day: str) -> None:
    for path, names in (("/audit/", ["since"]), ("/usage/", ["from", "to"])):
        for name in names:
            assert page.get(path, {name: day}).status_code in (200, 422), (path, day)


MOMENTS = [
    "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00",
    "9999-12-31T23:59:59-23:59", "1969-12-31T23:59:59Z", "9000-01-01T00:00:00Z", "1e20", "-1e20", "x", "",
]  # fmt: skip


@pytest.mark.parametrize("moment", MOMENTS)
def test_no_moment_beyond_the_calendar_breaks_a_route(api: Any, job: Job, moment: str) -> None:
    queries = [
        ("/jobs", "since"), ("/audit-log", "since"), (f"/jobs/{job.pk}/timeline", "from"),
        (f"/jobs/{job.pk}/timeline", "to"), ("/usage", "from"), ("/usage", "to"),
    ]  # fmt: skip
    for path, name in queries:
        assert api.get(path, **{name: moment}).status_code == 422, (path, name)
    assert api.post("/api-keys", {"name": "k", "expires_at": moment}).status_code == 422


def test_what_is_read_can_be_stored() -> None:
    assert read_moment("2026-01-05T12:00:00+05:30").isoformat() == "2026-01-05T06:30:00+00:00"
    assert read_moment("2026-01-05").isoformat() == "2026-01-05T00:00:00+00:00"
    assert str(read_day("2026-01-31")) == "2026-01-31"
    assert [read_count(text) for text in ("0", str(2**63 - 1))] == [0, 2**63 - 1]
    assert {read_count(text) for text in ("", "-1", "1.5", "٣", str(2**63), "9" * 5_000, "1\n")} == {None}
    assert is_id("job_0123456789abcdefghjk") and is_id("traj_1_2_3_4") and is_id("better-adder.v2")
    assert not any(map(is_id, ("", "a b", "a/b", "..", "a\x00", "é", "a\n", "x" * 101, "\u202eabc")))


NAMES = ["\u202eevil", "a\u2066b", "\u200b", "\u3164", "\u00a0", "a\u2028b", "\u2800\u2800", "a\tb", "tag\U000e0041"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_cannot_be_seen_is_no_name(api: Any, job: Job, name: str) -> None:
    project = {"project": job.project_id, "spec": {"name": name}}
    sent = [
        api.post("/jobs", project), api.post("/projects", {"name": name}), api.post("/api-keys", {"name": name}),
        api.post("/service-accounts", {"name": name}), api.request("PATCH", f"/jobs/{job.pk}", {"name": name}),
        api.request("PATCH", f"/jobs/{job.pk}", {"tags": [name]}), api.request("PATCH", "/team", {"name": name}),
    ]  # fmt: skip
    assert [answer.status_code for answer in sent] == [422] * len(sent)


@pytest.mark.parametrize("name", ["Zoë's run", "مرحبا", "می‌خواهم", "👩‍👩‍👧 family", "❤️", "日本語", "a  b"])
def test_a_name_in_any_language_is_one(api: Any, job: Job, name: str) -> None:
    assert api.request("PATCH", f"/jobs/{job.pk}", {"name": name}).status_code == 200


def test_unstorable_json_text_is_refused_with_its_pointer(api: Any, job: Job) -> None:
    for hidden in (b'"\\u0000"', b'"\\ud800"', b'["a", "\\uDFFF"]', b'{"x": "\\u0000"}', b'{"\\u0000": 1}'):
        answer = api.post(f"/jobs/{job.pk}/retry", b'{"changes": {"a": ' + hidden + b"}}")
        assert answer.status_code == 422, answer.content
        assert answer.json()["errors"][0]["pointer"].startswith("/changes/a")
    paired = b'{"name": "\\ud83d\\ude00"}'
    assert api.request("PATCH", f"/jobs/{job.pk}", paired).status_code == 200
