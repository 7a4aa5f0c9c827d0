"""Checks the mail server: connection, TLS, login. Sends a mail only if a receiver is given."""

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
    cure="Check host and port in LAMINAR_EMAIL_URL, and firewalls that block the port (587 or 465).",
)
TLS = Fault(
    name="mail.tls",
    cure="Check the server's certificate, and that LAMINAR_EMAIL_URL begins with smtp:// for STARTTLS (587), smtps:// "
    "for TLS (465).",
)
LOGIN = Fault(name="mail.login", cure="Check user and password in LAMINAR_EMAIL_URL (percent-encoded where needed).")
PLAIN = Fault(
    name="mail.plain",
    cure="Mails hold links that open accounts: use smtps://, or a user in LAMINAR_EMAIL_URL, which enables STARTTLS.",
)
REFUSED = Fault(
    name="mail.refused", cure="The server refuses mail from LAMINAR_EMAIL_FROM to that address. Check its log."
)


def check_mail(environment: Environment, *, send_to: str = "") -> Iterator[Finding]:
    if not environment.email_url:
        yield good("mail is not configured: invitation links are passed on by hand")
        return
    parts = urlsplit(environment.email_url)
    place = f"{parts.hostname}:{parts.port or (465 if parts.scheme == 'smtps' else 587)}"
    connection: Any = get_connection(timeout=_PATIENCE_S)
    try:
        connection.open()
        is_closed = isinstance(connection.connection.sock, ssl.SSLSocket)
        if not is_closed and not is_near(parts.hostname or ""):
            yield PLAIN.found(f"{place}: mails are sent unencrypted")
        else:
            yield good(
                f"{place} answers{', by TLS' if is_closed else ''}{', and accepts the login' * bool(parts.username)}"
            )
        if send_to:
            yield from _send_test_mail(connection, environment.email_from, send_to)
    except smtplib.SMTPAuthenticationError as error:
        yield LOGIN.found(f"{place}: {error.smtp_code} {_decode(error.smtp_error)}")
    except (ssl.SSLError, smtplib.SMTPNotSupportedError) as error:
        yield TLS.found(f"{place}: {error}")
    except OSError as error:
        yield UNREACHABLE.found(f"{place}: {type(error).__name__}: {error}")
    finally:
        connection.close()


def _send_test_mail(connection: Any, sender: str, receiver: str) -> Iterator[Finding]:
    letter = EmailMessage(
        subject="Laminar: mail works",
        body="This is a test mail of a Laminar operator. Mail works.\n",
        from_email=sender,
        to=[receiver],
        connection=connection,
    )
    try:
        letter.send()
        yield good(f"it accepted a mail to {receiver}")
    except smtplib.SMTPException as error:
        yield REFUSED.found(f"{sender} to {receiver}: {error}")


def _decode(answer: bytes | str) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer
