"""Fixtures of several rooms of the accounts."""

import time
from types import SimpleNamespace

import pytest
from allauth.mfa.totp.internal import auth

from tests.backend.accounts.letters import posts  # noqa: F401  # a fixture


@pytest.fixture(autouse=True)
def half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A code is valid for the half minute in which it was made; without a fixed clock the next could begin between
    making and using one."""
    now = time.time()
    monkeypatch.setattr(auth, "time", SimpleNamespace(time=lambda: now))
