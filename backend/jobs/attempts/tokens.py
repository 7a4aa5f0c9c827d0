"""The token with which an attempt's driver speaks to the control plane.

Invariants:
- the token follows from the service's secret and (job, attempt, fence): the launcher makes it again when it needs it,
  and the database holds only its SHA-256, by which it also knows which secret of before it was made with;
- a token speaks for one attempt; whether that attempt is still the job's present one is the fence's question.
"""

import base64
import hashlib

from django.conf import settings
from django.utils.crypto import salted_hmac

from backend.jobs.models import JobAttempt

_BRAND = "lam_run_"
_SALT = "backend.jobs.attempt_tokens"  # never to change: tokens of attempts that wait for their launch follow from it


def attempt_token(job_id: str, n: int, fence: int, *, secret: str | None = None) -> str:
    """`secret`: the service's; the present one unless told."""
    mac = salted_hmac(_SALT, f"{job_id}:{n}:{fence}", secret=secret, algorithm="sha256").digest()
    return _BRAND + base64.urlsafe_b64encode(mac).decode().rstrip("=")


def token_of(attempt: JobAttempt) -> str:
    """As it was begun, although the service's secret may have changed since."""
    about = (attempt.job_id, attempt.n, attempt.fence)
    secrets = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    made = [attempt_token(*about, secret=secret) for secret in secrets]
    known = [token for token in made if token_digest(token) == attempt.token_sha256]
    return known[0] if known else made[0]


def token_digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def attempt_of_token(token: str) -> JobAttempt | None:
    """Found by the digest of 256 secret bits, so the lookup's timing tells nothing."""
    return JobAttempt.objects.select_related("job").filter(token_sha256=token_digest(token)).first()
