"""Mails to users: plain text, sent during the request, never a reason for it to fail.

Invariants:
- without a mail server nothing is sent, and the caller gets False;
- a mail that the server refuses is logged without its text, which may hold a link.
"""

import logging
from typing import Final

from django.conf import settings
from django.core.mail import send_mail

from backend.outside.trust import trouble_with_certificate

log = logging.getLogger(__name__)
NO_MAIL: Final = "This site does not send mail. Contact its operator."


def has_mail() -> bool:
    return bool(settings.ENVIRONMENT.email_url)


def send_letter(address: str, subject: str, text: str) -> bool:
    """True if the server accepted it."""
    if not has_mail():
        return False
    try:
        send_mail(" ".join(subject.split()), text, None, [address])
    except OSError as error:  # smtplib's errors are subclasses
        trouble = trouble_with_certificate(error, "LAMINAR_EMAIL_URL")
        log.warning("mail could not be sent error=%s", trouble or type(error).__name__)
        return False
    return True
