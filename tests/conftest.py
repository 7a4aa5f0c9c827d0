"""The test database, for every folder of tests that uses one; and in CI no browser test is skipped."""

import os
from collections.abc import Generator

import pytest
from pytest_django import DjangoDbBlocker


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> None:
    """Transactional tests empty the database by TRUNCATE, which the event log refuses: lift that one guard here.

    tests/backend/test_guards.py puts it back inside its own transaction to prove that it holds.
    """
    from django.db import connection

    with django_db_blocker.unblock(), connection.cursor() as db:
        db.execute("ALTER TABLE jobs_jobevent DISABLE TRIGGER laminar_guard_event_truncate")
    connection.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where chromium is missing, a browser test skips itself. CI must not take that for a pass."""
    report = yield
    is_skipped = report.skipped and not hasattr(report, "wasxfail")
    if is_skipped and os.environ.get("CI") == "true" and item.get_closest_marker("browser"):
        report.outcome = "failed"
        report.longrepr = f"a browser test was skipped in CI: {report.longrepr}"
    return report
