"""Sign-in with a provider whose certificate was signed by a company's own authority."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.test import Client

from backend.accounts.models import User
from tests.backend.accounts.openid_provider import running, turn_on
from tests.backend.outside.conftest import REFUSED, RIGHT, Company, advice


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@pytest.fixture(scope="module")
def port(company: Company) -> Iterator[int]:
    with running(str(company.certificate.chain), str(company.certificate.key)) as port:
        yield port


def configure(settings: Any, company: Company, port: int, case: str) -> None:
    turn_on(settings, f"https://{company.host(case)}:{port}", ca_file=company.authorities(case))


def way_back(company: Company, location: str) -> str:
    """The URL to which the provider redirects the browser."""
    context = ssl.create_default_context(cafile=str(company.ours.file))
    opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=context))
    with pytest.raises(urllib.error.HTTPError) as answer:
        opener.open(location, timeout=10)
    back = urlsplit(answer.value.headers["Location"])
    return f"{back.path}?{back.query}"


@pytest.mark.django_db
def test_metadata_token_and_keys_are_fetched_over_tls(
    client: Client, company: Company, port: int, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    user = User.objects.create_user("ada@example.org")
    configure(settings, company, port, RIGHT)
    left = client.post("/accounts/oidc/sso/login/")
    assert left.status_code == 302, caplog.text
    client.get(way_back(company, left["Location"]))
    assert client.session["_auth_user_id"] == str(user.pk), caplog.text


@pytest.mark.django_db
@pytest.mark.parametrize("case", REFUSED)
def test_impostor_provider_is_refused_and_setting_named(
    client: Client, company: Company, port: int, settings: Any, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    configure(settings, company, port, case)
    answer = client.post("/accounts/oidc/sso/login/")
    assert answer.status_code == 503 and b"is unreachable" in answer.content
    assert advice(case) in caplog.text and "LAMINAR_OIDC_ISSUER" in caplog.text


@pytest.mark.django_db
def test_provider_replaced_during_sign_in_gets_no_code(
    client: Client, company: Company, port: int, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    configure(settings, company, port, RIGHT)
    left = client.post("/accounts/oidc/sso/login/")["Location"]
    back = way_back(company, left)
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, ca_file=str(company.stranger.file))
    assert b"You are not signed in" in client.get(back).content
    assert "LAMINAR_CA_FILE" in caplog.text and "_auth_user_id" not in client.session
