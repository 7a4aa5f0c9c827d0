"""The mail server: Django's settings, and a connection that also trusts the site's own authorities.

Invariant: over TLS, from the start or by STARTTLS, no password and no mail is sent to a server with an invalid
certificate.
"""

import ssl
from typing import Final
from urllib.parse import unquote, urlsplit

from django.conf import settings
from django.core.mail.backends.smtp import EmailBackend as PublicBackend
from django.utils.functional import cached_property

from backend.missing import MissingSetting
from backend.outside.trust import trusted

_PORTS: Final = {"smtp": 587, "smtp+tls": 587, "smtps": 465}


class EmailBackend(PublicBackend):
    @cached_property
    def ssl_context(self) -> ssl.SSLContext:
        return trusted(settings.ENVIRONMENT.ca_file)


def mail_settings(url: str, sender: str) -> dict[str, object]:
    """Django's settings for sending mail. Without a server nothing is sent or logged: a link in a log would be a leak.

    Raises `MissingSetting`.
    """
    if not url:
        return {"EMAIL_BACKEND": "django.core.mail.backends.dummy.EmailBackend"}
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname or not sender:
        raise MissingSetting(
            "LAMINAR_EMAIL_URL must look like smtp://user:password@host:587 (with STARTTLS), smtp+tls://host:587 (with "
            "STARTTLS and without a password), smtps://user:password@host:465 or smtp://host:25 (in the clear), with "
            "LAMINAR_EMAIL_FROM set too"
        )
    return {
        "EMAIL_BACKEND": f"{__name__}.EmailBackend",
        "EMAIL_HOST": parts.hostname,
        "EMAIL_PORT": parts.port or _PORTS[parts.scheme],
        "EMAIL_HOST_USER": unquote(parts.username or ""),
        "EMAIL_HOST_PASSWORD": unquote(parts.password or ""),
        "EMAIL_USE_SSL": parts.scheme == "smtps",
        "EMAIL_USE_TLS": parts.scheme == "smtp+tls" or (parts.scheme == "smtp" and bool(parts.username)),
        "EMAIL_TIMEOUT": 10,
        "DEFAULT_FROM_EMAIL": sender,
    }
