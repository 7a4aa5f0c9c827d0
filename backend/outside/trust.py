"""Certificates: which ones are trusted, and what an operator does about a refused one.

Invariants:
- `LAMINAR_CA_FILE` adds authorities to the public ones and takes none away;
- messages name settings, never a host, an account or a password: /readyz is public.
"""

import re
import ssl
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

OWN_AUTHORITY: Final = "LAMINAR_CA_FILE"

# Messages of OpenSSL, libpq and the libraries above them, in lower case; the first match counts.
_MEANINGS: Final = (
    (
        re.compile(r"hostname mismatch|ip address mismatch|does not match host name|doesn't match|not valid for '"),
        "the certificate of that server is for another host name than the one in {address}: use the certificate's host "
        "name there",
    ),
    (re.compile(r"certificate has expired"), "the certificate of the server in {address} has expired: renew it"),
    (
        re.compile(r"root certificate file .* does not exist|could not read root certificate|no certificate or crl"),
        "{address} requires a checked certificate, but no authority is set: set {authority} to its file (PEM)",
    ),
    (
        re.compile(r"certificate verify failed|certificate_verify_failed"),
        "the certificate of the server in {address} is signed by an untrusted authority: set {authority} to the "
        "authority's file (PEM)",
    ),
    (
        re.compile(r"does not support ssl|wrong version number|wrong_version_number|starttls extension not supported"),
        "the server in {address} does not support TLS there: use another port, or an address without TLS",
    ),
)


def trusted(authorities: str) -> ssl.SSLContext:
    """The public authorities, plus those of this file (PEM) if it is set. A changed file is read again. Callers share
    the context and must not change it. Raises `OSError` (`SSLError` is one)."""
    return _context(authorities, Path(authorities).stat().st_mtime_ns if authorities else 0)


@lru_cache(maxsize=4)
def _context(authorities: str, _changed_ns: int) -> ssl.SSLContext:
    """Parsing the public authorities takes 25 ms of a core."""
    context = ssl.create_default_context()
    if authorities:
        context.load_verify_locations(authorities)
    return context


def trouble_with_certificate(error: BaseException, address: str, authority: str = OWN_AUTHORITY) -> str:
    """The TLS problem with the server of the setting `address`, and its fix; empty for other errors."""
    messages = " ".join(str(each) for each in _walk_causes(error)).lower()
    for pattern, meaning in _MEANINGS:
        if pattern.search(messages):
            return meaning.replace("{address}", address).replace("{authority}", authority)
    return ""


def _walk_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
