"""Addresses of the database and the broker, completed once, so that every client makes the same checks.

Invariants:
- if an address requires a checked certificate and names no authority, `LAMINAR_CA_FILE` is used;
- `rediss://` checks the server's certificate and name unless the address itself disables it. Celery's library checks
  nothing unless the address requires it.
"""

from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

_CHECKED_MODES: Final = frozenset({"verify-ca", "verify-full"})
_BROKER_OPTIONS: Final = frozenset(
    {"ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname", "ssl_min_version"}
)


def database_address(url: str, authorities: str) -> str:
    """`authorities`: a file of certificates (PEM); empty: none."""
    options = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    if authorities and options.get("sslmode") in _CHECKED_MODES and "sslrootcert" not in options:
        return f"{url}&{urlencode({'sslrootcert': authorities})}"
    return url


def broker_address(url: str, authorities: str) -> str:
    """In a form that Celery and redis-py read alike. Raises `ValueError`."""
    parts = urlsplit(url)
    if parts.scheme != "rediss":
        return url
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(name for name in options if name.startswith("ssl") and name not in _BROKER_OPTIONS)
    if unknown:
        raise ValueError(
            f"allowed options after `?` are {', '.join(sorted(_BROKER_OPTIONS))}, got {', '.join(unknown)}"
        )
    checks = options.setdefault("ssl_cert_reqs", "required")
    if checks not in {"required", "none"}:
        raise ValueError(f"ssl_cert_reqs must be required or none, got {checks!r}")
    if authorities and checks == "required":
        options.setdefault("ssl_ca_certs", authorities)
    return urlunsplit(parts._replace(query=urlencode(options)))
