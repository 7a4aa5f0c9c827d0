"""The test database, vLLM's interpreter, for every folder of tests that uses them; a test leaves the settings as they
were; and in CI nothing is skipped for what is missing."""

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from pytest_django import DjangoDbBlocker

from engine.inference.vllm.interpreter import find_vllm_python


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter that has vLLM. With VLLM=0, or where there is none, the test is left out."""
    if os.environ.get("VLLM") == "0":
        pytest.skip("VLLM=0: the tests that run inside vLLM are left out")
    try:
        python = find_vllm_python(os.environ.get("LAMINAR_VLLM_PYTHON", ""))
    except ValueError as missing:
        pytest.skip(str(missing))
    stamp = python.parents[1] / "laminar-stamp.json"
    if stamp.is_file() and "vllm-cuda" in stamp.read_text():
        pytest.skip("the tests run vLLM on the CPU, and this one is built for CUDA: make test VLLM=cpu makes the other")
    return python


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings: None) -> None:
    """A test holds its transaction open to its end. On a busy machine the first of a process, which imports much, does
    so for longer than a site lets anybody."""
    options: Any = settings.DATABASES["default"]["OPTIONS"]
    options["options"] += " -c idle_in_transaction_session_timeout=600000"


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> None:
    """Transactional tests empty the database by TRUNCATE, which event log and audit log refuse: lift those guards here.

    The tests of guards and of the audit log put them back inside their own transactions to prove that they hold.
    """
    from django.contrib.auth.hashers import Argon2PasswordHasher
    from django.core.management.commands import flush
    from django.db import connection

    # Cheap to guess and to compute: these passwords protect nothing. A server in another process can verify them too,
    # since a hash contains its own cost parameters.
    Argon2PasswordHasher.time_cost, Argon2PasswordHasher.memory_cost, Argon2PasswordHasher.parallelism = 1, 8, 1
    # After each flush, Django fills in permissions and content types, which no test needs. That takes longer than the
    # flush itself.
    pytest.MonkeyPatch().setattr(flush, "emit_post_migrate_signal", lambda *_, **__: None)
    _flush_again_after_a_deadlock()
    _list_static_files_once()

    with django_db_blocker.unblock(), connection.cursor() as db:
        db.execute("ALTER TABLE jobs_jobevent DISABLE TRIGGER laminar_guard_event_truncate")
        db.execute("ALTER TABLE audit_auditentry DISABLE TRIGGER laminar_guard_audit_truncate")
        db.execute("ALTER TABLE audit_audithead DISABLE TRIGGER laminar_guard_audit_head_truncate")
    connection.close()


def _flush_again_after_a_deadlock() -> None:
    """The last request of a page may still read when its test ends. It holds one table and waits for the next, which
    the flush has locked already: Postgres then ends the flush."""
    from django.db import OperationalError
    from django.db.backends.postgresql.operations import DatabaseOperations
    from psycopg.errors import DeadlockDetected

    flush_once = DatabaseOperations.execute_sql_flush

    def flush(operations: Any, statements: list[str]) -> None:
        while True:
            try:
                return flush_once(operations, statements)
            except OperationalError as error:
                if not isinstance(error.__cause__, DeadlockDetected):
                    raise

    pytest.MonkeyPatch().setattr(DatabaseOperations, "execute_sql_flush", flush)


def _list_static_files_once() -> None:
    """Every test client starts the middleware again, and WhiteNoise then looks at every static file: that took as long
    as all requests together."""
    from whitenoise.middleware import WhiteNoiseMiddleware

    find = WhiteNoiseMiddleware.add_files_from_finders
    found: dict[str, Any] = {}

    def add_what_was_found(starting: Any) -> None:
        if not found:
            find(starting)
            found.update(starting.files)
        starting.files.update(found)

    pytest.MonkeyPatch().setattr(WhiteNoiseMiddleware, "add_files_from_finders", add_what_was_found)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Or a test far behind it fails, and only if both are run."""
    yield
    if settings.configured:
        before = item.session.stash.setdefault(_ENVIRONMENT, settings.ENVIRONMENT)
        left, settings.ENVIRONMENT = settings.ENVIRONMENT, before
        assert left == before, f"{item.nodeid} left other settings behind: {left}"


_ENVIRONMENT = pytest.StashKey[Any]()
NOT_HERE = "not on this processor"
"""In the reason of a skip: nothing is missing that could be installed. `tested.json` counts it by its reason."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test skips itself where chromium, bubblewrap or vLLM is missing. CI must not take that for a pass."""
    report = yield
    is_skipped = report.skipped and not hasattr(report, "wasxfail") and NOT_HERE not in str(report.longrepr)
    needed = {"browser", "sandbox"} | (set() if os.environ.get("VLLM") == "0" else {"vllm"})
    if is_skipped and os.environ.get("CI") == "true" and needed & {mark.name for mark in item.iter_markers()}:
        report.outcome = "failed"
        report.longrepr = f"a test that needs {' or '.join(sorted(needed))} was skipped in CI: {report.longrepr}"
    return report
