"""Mail over TLS, immediate or by STARTTLS."""

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from backend.accounts.letters import send_letter
from backend.missing import MissingSetting
from backend.outside.mail import mail_settings
from tests.backend.outside.conftest import REFUSED, RIGHT, Company, advice
from tests.backend.outside.mail_server import MailServer, mail_server

ACCOUNT = "laminar:p%40ss"
PASSWORD = b64encode(b"\0laminar\0p@ss").decode()
SCHEMES = {"smtp": ACCOUNT, "smtps": ACCOUNT, "smtp+tls": ""}
"""Each with the account in its URL."""


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(company: Company, scheme: str) -> Iterator[MailServer]:
    with mail_server(company.certificate.context(), at_once=scheme == "smtps") as running:
        yield running


def send(settings: Any, company: Company, server: MailServer, scheme: str, case: str) -> bool:
    account = f"{SCHEMES[scheme]}@" if SCHEMES[scheme] else ""
    url = f"{scheme}://{account}{company.host(case)}:{server.port}"
    for name, value in mail_settings(url, "laminar@example.org").items():
        setattr(settings, name, value)
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, email_url=url, ca_file=company.authorities(case))
    return send_letter("ada@example.org", "Hello", "https://site/secret-link")


def test_a_letter_goes_over_tls_to_a_server_of_our_authority(
    company: Company, server: MailServer, scheme: str, settings: Any
) -> None:
    assert send(settings, company, server, scheme, RIGHT)
    (letter,) = server.letters
    assert "secret-link" in letter and server.in_the_clear == []
    assert server.passwords == ([PASSWORD] if SCHEMES[scheme] else [])


@pytest.mark.parametrize("case", REFUSED)
def test_impostor_mail_server_gets_nothing_and_names_setting(
    company: Company, server: MailServer, scheme: str, case: str, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert not send(settings, company, server, scheme, case)
    assert (server.letters, server.passwords, server.in_the_clear) == ([], [], [])
    assert advice(case) in caplog.text and "LAMINAR_EMAIL_URL" in caplog.text and "secret-link" not in caplog.text


@pytest.mark.parametrize("url", ["mail.example.org:587", "smtp+ssl://h", "https://h"])
def test_an_address_that_is_none_is_refused_with_those_that_are(url: str) -> None:
    with pytest.raises(MissingSetting, match=r"^LAMINAR_EMAIL_URL must look like smtp://"):
        mail_settings(url, "laminar@example.org")
