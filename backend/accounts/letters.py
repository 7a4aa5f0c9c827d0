"""Letters to people: plain text, sent while the person waits, never a reason to fail.

Invariants:
- where no mail server is set nothing is sent, and the caller is told so;
- a server that does not take the letter is logged without the letter: it may hold a link.
"""

import logging
from typing import Final

from django.conf import settings
from django.core.mail import send_mail

from backend.outside.trust import trouble_with_certificate

log = logging.getLogger(__name__)
NO_MAIL: Final = "No mail goes out from here: ask whoever runs this site."


def has_mail() -> bool:
    return bool(settings.ENVIRONMENT.email_url)


def send_letter(address: str, subject: str, text: str) -> bool:
    """True if a server took it."""
    if not has_mail():
        return False
    try:
        send_mail(" ".join(subject.split()), text, None, [address])
    except OSError as error:  # smtplib's own errors are of this kind
        trouble = trouble_with_certificate(error, "LAMINAR_EMAIL_URL")
        log.warning("a letter could not be sent error=%s", trouble or type(error).__name__)
        return False
    return True
