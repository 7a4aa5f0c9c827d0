"""An in-memory mail server, and the links in its mails."""

import re
from dataclasses import replace
from typing import Any

import pytest
from django.core import mail


@pytest.fixture
def posts(settings: Any) -> None:
    """Enables mail, which is kept in django.core.mail.outbox."""
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, email_url="smtp://127.0.0.1")
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"


def letters_to(address: str) -> list[str]:
    return [str(letter.body) for letter in mail.outbox if letter.to == [address]]


def path_in(letter: str) -> str:
    """The path of its only link."""
    (path,) = re.findall(r"https?://[^/\s]+(/\S+)", letter)
    return str(path)
