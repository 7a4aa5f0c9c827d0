"""Servers with TLS, with a certificate for `localhost` of a company's own authority; and an untrusted authority."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.certificates import Authority, Certificate
from tests.tls_front import tls_before

RIGHT, WRONG_NAME, STRANGER, NONE = "right", "wrong name", "stranger", "none"
REFUSED = (WRONG_NAME, STRANGER, NONE)
"""The ways in which a server is an impostor: another host name, or an unknown authority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    ours: Authority
    stranger: Authority
    certificate: Certificate

    def host(self, case: str) -> str:
        return "127.0.0.1" if case == WRONG_NAME else "localhost"

    def authorities(self, case: str) -> str:
        if case == NONE:
            return ""
        return str((self.stranger if case == STRANGER else self.ours).file)


def advice(case: str) -> str:
    """The advice that an operator gets."""
    return "another host name" if case == WRONG_NAME else "LAMINAR_CA_FILE"


@pytest.fixture(scope="session")
def company(tmp_path_factory: pytest.TempPathFactory) -> Company:
    folder = tmp_path_factory.mktemp("authorities")
    ours = Authority(folder, "ours")
    return Company(ours=ours, stranger=Authority(folder, "stranger"), certificate=ours.certificate_for("localhost"))


@pytest.fixture(scope="session")
def database_port(company: Company) -> Iterator[int]:
    with tls_before(_port("LAMINAR_DATABASE_URL"), company.certificate.context(), of_postgres=True) as port:
        yield port


@pytest.fixture(scope="session")
def broker_port(company: Company) -> Iterator[int]:
    with tls_before(_port("LAMINAR_BROKER_URL"), company.certificate.context()) as port:
        yield port


@pytest.fixture(autouse=True)
def no_public_authority(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Excludes the machine's own trusted authorities, which are not under test."""
    for name in ("PGSSLROOTCERT", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # libpq looks for authorities there


def _port(name: str) -> int:
    port = urlsplit(os.environ[name]).port
    assert port is not None
    return port
