"""Checks the file of the site's certificate authorities: is it readable, does it hold any, when do they expire?"""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509

from backend.clock import database_now
from backend.environment import Environment
from backend.operating.checks.findings import Fault, Finding, Verdict, good

SOON: Final = timedelta(days=30)
"""Time to have new ones signed, and to replace the certificates that they signed."""
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

UNREADABLE = Fault(
    name="authority.unreadable",
    cure="Mount the file in LAMINAR_CA_FILE into web, worker and beat, readable by their user (10001 in containers). "
    "Running processes use what they read at their start; new ones do not start.",
)
NO_CERTIFICATE = Fault(
    name="authority.no_certificate",
    cure="LAMINAR_CA_FILE must hold certificates as PEM, one after another (-----BEGIN CERTIFICATE-----): convert "
    "others with openssl x509 -inform der -in FILE.",
)
EXPIRED = Fault(
    name="authority.expired",
    cure="Nothing that it signed is trusted any more: put its successor into the file of LAMINAR_CA_FILE, have the "
    "servers' certificates signed by that, and restart web, worker and beat.",
)
EXPIRES = Fault(
    name="authority.expires",
    verdict=Verdict.WARNING,
    cure="Add its successor to the file of LAMINAR_CA_FILE, and restart web, worker and beat, before the servers' "
    "certificates are signed by the new one.",
)
NO_AUTHORITY = Fault(
    name="authority.of_a_server",
    verdict=Verdict.WARNING,
    cure="It is a server's own certificate, trusted for that server until it is renewed: put the authority that signed "
    "it into LAMINAR_CA_FILE.",
)


def check_authorities(environment: Environment) -> Iterator[Finding]:
    if not environment.ca_file:
        yield good("no own authority: the public ones are trusted")
        return
    try:
        content = Path(environment.ca_file).read_bytes()
    except OSError as error:
        yield UNREADABLE.found(f"LAMINAR_CA_FILE: {environment.ca_file}: {error.strerror or error}")
        return
    yield from judge(content, database_now())


def judge(content: bytes, now: datetime) -> Iterator[Finding]:
    certificates = _CERTIFICATE.findall(content)
    if not certificates:
        yield NO_CERTIFICATE.found("LAMINAR_CA_FILE holds no certificate")
    for number, text in enumerate(certificates, 1):
        try:
            certificate = x509.load_pem_x509_certificate(text)
        except ValueError as error:
            yield NO_CERTIFICATE.found(
                f"LAMINAR_CA_FILE: certificate {number} of {len(certificates)} is invalid: {error}"
            )
        else:
            yield _judge_one(certificate, now)


def _judge_one(certificate: x509.Certificate, now: datetime) -> Finding:
    name, until = certificate.subject.rfc4514_string() or "without a name", certificate.not_valid_after_utc
    if until <= now:
        return EXPIRED.found(f"{name} expired on {until:%Y-%m-%d}")
    if not _may_sign(certificate):
        return NO_AUTHORITY.found(f"{name} is not a certificate authority")
    if until <= now + SOON:
        return EXPIRES.found(f"{name} expires on {until:%Y-%m-%d}")
    return good(f"{name} is trusted until {until:%Y-%m-%d}")


def _may_sign(certificate: x509.Certificate) -> bool:
    """A certificate older than the extension is accepted if it is self-signed, as in OpenSSL."""
    try:
        return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except x509.ExtensionNotFound:
        return certificate.subject == certificate.issuer
