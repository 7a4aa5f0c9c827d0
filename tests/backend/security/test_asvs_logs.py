"""OWASP ASVS 5, chapter 16.2: where log lines go, and their time zone."""

import os
import subprocess
import sys

import pytest

from tests.backend.security.conftest import ROOT

pytestmark = pytest.mark.long

SAY = """
import logging, django; django.setup()
record = logging.makeLogRecord({"name": "x", "levelname": "INFO", "msg": "said", "created": 0.0})
print(*[handler.format(record) for handler in logging.getLogger().handlers])
loggers = (logging.root, *logging.root.manager.loggerDict.values())
found = [handler for each in loggers for handler in getattr(each, "handlers", [])]
print(*sorted({f"{type(each).__name__}:{getattr(getattr(each, 'stream', None), 'name', '')}" for each in found}))
from django.conf import settings
print(settings.ADMINS)
"""


def said() -> list[str]:
    """In a process whose time zone is Tokyo."""
    environment = os.environ | {"TZ": "Asia/Tokyo", "LAMINAR_DEBUG": "0"}
    done = subprocess.run([sys.executable, "-c", SAY], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.long
def test_log_times_are_utc_in_any_time_zone() -> None:
    line, *_ = said()
    assert line.startswith(("1970-01-01 00:00:00", "1970-01-01T00:00:00")) and line.endswith("said")


@pytest.mark.long
def test_logs_go_to_standard_error_and_nowhere_else() -> None:
    """Django's own mail handler exists, and has no recipients."""
    _, handlers, admins = said()
    assert set(handlers.split()) - {"NullHandler:", "AdminEmailHandler:"} == {"StreamHandler:<stderr>"}
    assert admins == "[]"
