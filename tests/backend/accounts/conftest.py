"""What tests of several rooms of the accounts use."""

import time
from types import SimpleNamespace

import pytest
from allauth.mfa.totp.internal import auth

from tests.backend.accounts.letters import posts  # noqa: F401  # a fixture


@pytest.fixture(autouse=True)
def half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A code is good for the half minute in which it was made: between making and showing one the clock would
    sometimes pass into the next."""
    now = time.time()
    monkeypatch.setattr(auth, "time", SimpleNamespace(time=lambda: now))
