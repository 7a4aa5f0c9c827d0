"""Mail: connecting, TLS, signing in. A letter goes out only if somebody names its receiver."""

import smtplib
import ssl
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from django.core.mail import EmailMessage, get_connection

from backend.environment import Environment
from backend.operating.checks.findings import Fault, Finding, good
from backend.operating.checks.near import is_near

_PATIENCE_S: Final = 5

UNREACHABLE = Fault(
    name="mail.unreachable",
    cure="See to host and port in LAMINAR_EMAIL_URL, and to what closes that port (587 or 465) on the way.",
)
TLS = Fault(
    name="mail.tls",
    cure="See to the server's certificate, and that LAMINAR_EMAIL_URL says smtp:// for STARTTLS (587), smtps:// for "
    "TLS (465).",
)
LOGIN = Fault(name="mail.login", cure="See to user and password in LAMINAR_EMAIL_URL (percent-encoded where needed).")
PLAIN = Fault(
    name="mail.plain",
    cure="Letters hold links that open accounts: name a user in LAMINAR_EMAIL_URL (then STARTTLS is asked for), or smtps://.",
)
REFUSED = Fault(
    name="mail.refused", cure="The server takes no letter from LAMINAR_EMAIL_FROM to that address: its log says why."
)


def look_at_mail(environment: Environment, *, send_to: str = "") -> Iterator[Finding]:
    if not environment.email_url:
        yield good("no mail goes out: invitations are links that one hands on")
        return
    parts = urlsplit(environment.email_url)
    place = f"{parts.hostname}:{parts.port or (465 if parts.scheme == 'smtps' else 587)}"
    connection: Any = get_connection(timeout=_PATIENCE_S)
    try:
        connection.open()
        is_closed = isinstance(connection.connection.sock, ssl.SSLSocket)
        if not is_closed and not is_near(parts.hostname or ""):
            yield PLAIN.found(f"{place}: letters go there unencrypted")
        else:
            yield good(
                f"{place} answers{', by TLS' if is_closed else ''}{', and takes our name' * bool(parts.username)}"
            )
        if send_to:
            yield from _letter(connection, environment.email_from, send_to)
    except smtplib.SMTPAuthenticationError as error:
        yield LOGIN.found(f"{place}: {error.smtp_code} {_text(error.smtp_error)}")
    except (ssl.SSLError, smtplib.SMTPNotSupportedError) as error:
        yield TLS.found(f"{place}: {error}")
    except OSError as error:
        yield UNREACHABLE.found(f"{place}: {type(error).__name__}: {error}")
    finally:
        connection.close()


def _letter(connection: Any, sender: str, receiver: str) -> Iterator[Finding]:
    letter = EmailMessage(
        subject="Laminar: mail works",
        body="Somebody who operates Laminar asked whether its mail arrives. It does.\n",
        from_email=sender,
        to=[receiver],
        connection=connection,
    )
    try:
        letter.send()
        yield good(f"it took a letter to {receiver}")
    except smtplib.SMTPException as error:
        yield REFUSED.found(f"{sender} to {receiver}: {error}")


def _text(answer: bytes | str) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer
