"""A refusal is one line of the log; only unexpected errors have a traceback."""

import logging
from collections.abc import Iterator
from io import StringIO

import pytest
from django.test import Client

from backend.accounts.models import User


@pytest.fixture
def log() -> Iterator[StringIO]:
    """The output of the process' own handler, with its filters and its format."""
    (handler,) = [each for each in logging.getLogger().handlers if each.name == "stderr"]
    assert isinstance(handler, logging.StreamHandler)
    written = StringIO()
    before = handler.setStream(written)
    yield written
    handler.setStream(before)


def lines(log: StringIO) -> list[str]:
    """Without the line that the refusal was written to the audit log."""
    return [line for line in log.getvalue().splitlines() if "action=request.denied" not in line]


@pytest.fixture
def operator(db: None) -> Client:
    browser = Client(raise_request_exception=False)
    browser.force_login(User.objects.create_superuser("root@example.org", "still-waters-run-deep"))
    return browser


def test_denied_admin_page_is_logged_in_one_line(operator: Client, log: StringIO) -> None:
    assert operator.get("/admin/accounts/team/add/").status_code == 403
    (line,) = lines(log)
    assert "WARNING" in line and "/admin/accounts/team/add/" in line


def test_refusals_log_line_has_the_reason(operator: Client, log: StringIO) -> None:
    assert operator.post("/admin/accounts/team/").status_code == 403
    (line,) = lines(log)
    assert line.endswith(
        "/admin/accounts/team/ why=The admin site is read-only. Use the operator pages to make changes."
    )


def test_a_form_that_cannot_be_read_is_one_line(client: Client, log: StringIO) -> None:
    answer = client.post("/accounts/login/", "no form", content_type="multipart/form-data; boundary=")
    assert answer.status_code == 400
    (line,) = lines(log)
    assert "/accounts/login/" in line and "oundary" in line


def test_a_hostile_name_of_the_host_is_one_line(log: StringIO) -> None:
    assert Client(headers={"host": "50%s.example.org"}).get("/accounts/login/").status_code == 400
    (line,) = lines(log)
    assert "50%s.example.org" in line


def test_unexpected_error_keeps_its_traceback(operator: Client, log: StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("backend.site_notices._looks.newest", breaks)
    assert operator.get("/status/").status_code == 500
    assert "    RuntimeError: a fault of ours" in lines(log)
