"""Every error response has one shape and names its request."""

import json
import logging
from typing import Any

import pytest
from django.db import OperationalError
from django.http import HttpResponse
from django.test import Client, RequestFactory

from backend.api.bodies import MAX_BODY_BYTES
from backend.api.middleware import RequestIdMiddleware
from backend.api.request_context import REQUEST_ID

FIELDS = {"type", "title", "status", "detail", "instance", "code", "request_id", "errors", "retryable"}


def problem(response: Any, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    document: dict[str, Any] = json.loads(response.content)
    assert set(document) >= FIELDS
    assert (document["status"], document["code"]) == (status, code)
    assert document["request_id"] == response["X-Request-Id"] != ""
    assert b"Traceback" not in response.content and b"psycopg" not in response.content
    return document


def test_an_unknown_route(api: Any) -> None:
    assert problem(api.get("/nothing/here"), 404, "not_found")["instance"] == "/api/v1/nothing/here"
    problem(api.get("/"), 404, "not_found")


@pytest.mark.parametrize(("method", "path"), [("DELETE", "/jobs"), ("PUT", "/me"), ("GET", "/jobs:preview")])
def test_a_wrong_method_names_the_right_ones(api: Any, method: str, path: str) -> None:
    response = api.request(method, path)
    problem(response, 405, "method_not_allowed")
    assert response["Allow"] in {"GET", "POST", "GET, POST", "POST, GET"}


def test_no_key(anonymous: Any) -> None:
    response = anonymous.get("/jobs")
    problem(response, 401, "unauthenticated")
    assert response["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("header", ["Bearer", "Bearer x", "Basic YTpi", "bearer lam_live_x", "\x7f", "Bearer \u00e9"])
def test_a_wrong_key(db: None, header: str) -> None:
    problem(Client().get("/api/v1/me", headers={"Authorization": header}), 401, "unauthenticated")


def test_a_session_cookie_opens_nothing(alice: Any) -> None:
    browser = Client()
    browser.force_login(alice)
    problem(browser.get("/api/v1/jobs"), 401, "unauthenticated")
    problem(browser.post("/api/v1/jobs", {}, content_type="application/json"), 401, "unauthenticated")


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[1,]",
        b"\xff\xfe",
        b"nul",
        b'{"a": NaN}',
        b"[Infinity]",
        b"[-Infinity]",
        b'{"a": 1, "a": 2}',
        b"9" * 5_000,
    ],
)
def test_text_that_is_not_json(api: Any, body: bytes) -> None:
    problem(api.post("/jobs", body), 400, "malformed")


@pytest.mark.parametrize("depth", [40, 900, 100_000])
def test_json_that_nests_too_deep(api: Any, depth: int) -> None:
    problem(api.post("/jobs", b"[" * depth + b"]" * depth), 400, "too_deep")
    problem(api.post("/jobs", b'{"a":' * depth + b"1" + b"}" * depth), 400, "too_deep")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"])
def test_another_content_type(api: Any, content_type: str) -> None:
    problem(api.post("/jobs", b"{}", content_type=content_type), 415, "unsupported_media_type")


def test_another_charset(api: Any) -> None:
    response = api.post("/jobs", b"{}", content_type="application/json; charset=utf-16")
    problem(response, 415, "unsupported_media_type")


@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, 10 * 1024 * 1024])
def test_a_body_that_is_too_large(api: Any, size: int) -> None:
    problem(api.post("/jobs", b" " * size), 413, "too_large")


def test_unexpected_error_is_logged_and_hides_its_details(
    api: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(*_: object, **__: object) -> None:
        raise ZeroDivisionError("the inside")

    monkeypatch.setattr("backend.jobs.rest.jobs.the_job", break_down)
    with caplog.at_level(logging.ERROR, logger="backend.api.handlers"):
        response = api.get("/jobs/job_x")
    document = problem(response, 500, "internal_error")
    assert "the inside" not in response.content.decode()
    assert document["request_id"] in caplog.text and "ZeroDivisionError" in caplog.text


def test_unavailable_database_is_503_with_retry_after(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr("backend.accounts.keys.bearer.recognise_api_key", away)
    response = api.get("/me")
    assert problem(response, 503, "unavailable")["retryable"] is True
    assert int(response["Retry-After"]) > 0


def test_page_without_a_database_is_503_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    request = RequestFactory().get("/jobs/")
    request.META[REQUEST_ID] = "req_page"
    middleware = RequestIdMiddleware(lambda request: HttpResponse())
    with caplog.at_level(logging.ERROR, logger="backend.api.handlers"):
        response = middleware.process_exception(request, OperationalError("no connection within 5 s"))
    assert response is not None and response.status_code == 503 and int(response["Retry-After"]) > 0
    assert "no connection" not in response.content.decode()
    assert "req_page" in caplog.text and "no connection within 5 s" in caplog.text


def test_a_callers_own_request_id_is_kept_if_it_is_a_plain_word(api: Any) -> None:
    for sent, kept in [("abc-1.2_3", True), ("a b", False), ("x" * 65, False), ("<script>", False), ("é", False)]:
        response = api.client.get("/healthz", headers={"X-Request-Id": sent})
        assert (response["X-Request-Id"] == sent) is kept


def test_pages_carry_a_request_id_too(db: None) -> None:
    assert Client().get("/accounts/login/")["X-Request-Id"].startswith("req_")
