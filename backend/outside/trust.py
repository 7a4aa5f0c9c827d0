"""Certificates: whose we take, and what an operator does about one that is refused.

Invariants:
- `LAMINAR_CA_FILE` adds authorities to the public ones and takes none away;
- what is told names settings, never a host, an account or a password: whoever asks for /readyz reads it.
"""

import re
import ssl
from collections.abc import Iterator
from typing import Final

OWN_AUTHORITY: Final = "LAMINAR_CA_FILE"

# What OpenSSL, libpq and the libraries above them say, lower case; the first that fits counts.
_MEANINGS: Final = (
    (
        re.compile(r"hostname mismatch|ip address mismatch|does not match host name|doesn't match|not valid for '"),
        "the certificate of that server is for another host name than the one in {address}: write there the name that "
        "the certificate has",
    ),
    (re.compile(r"certificate has expired"), "the certificate of the server in {address} has expired: renew it there"),
    (
        re.compile(r"root certificate file .* does not exist|could not read root certificate|no certificate or crl"),
        "{address} is to be checked, and no authority is named: {authority} is the file (PEM) of the one that signed",
    ),
    (
        re.compile(r"certificate verify failed|certificate_verify_failed"),
        "the certificate of the server in {address} is signed by no authority that is trusted here: {authority} is "
        "the file (PEM) of the one that signed it",
    ),
    (
        re.compile(r"does not support ssl|wrong version number|wrong_version_number|starttls extension not supported"),
        "the server in {address} speaks no TLS there: another port, or an address without TLS",
    ),
)


def trusted(authorities: str) -> ssl.SSLContext:
    """The public authorities, and those of this file (PEM) if it names one. Raises `OSError` (`SSLError` is one)."""
    context = ssl.create_default_context()
    if authorities:
        context.load_verify_locations(authorities)
    return context


def trouble_with_certificate(error: BaseException, address: str, authority: str = OWN_AUTHORITY) -> str:
    """What is wrong with TLS to the server that the setting `address` names, and what to do; empty: something else."""
    said = " ".join(str(each) for each in _chain(error)).lower()
    for pattern, meaning in _MEANINGS:
        if pattern.search(said):
            return meaning.replace("{address}", address).replace("{authority}", authority)
    return ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
