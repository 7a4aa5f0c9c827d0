"""The token that authenticates an attempt's driver to the control plane.

Invariants:
- the token derives from the service's secret and (job, attempt, fence): the launcher derives it again when needed. The
  database holds only its SHA-256, which also shows which earlier secret it was derived from;
- a token authenticates one attempt; the fence decides whether that attempt is still the current one.
"""

import base64
import hashlib

from django.conf import settings
from django.utils.crypto import salted_hmac

from backend.jobs.models import JobAttempt

_BRAND = "lam_run_"
_SALT = "backend.jobs.attempt_tokens"  # never change: tokens of attempts awaiting launch derive from it


def attempt_token(job_id: str, n: int, fence: int, *, secret: str | None = None) -> str:
    """`secret`: the service's, by default the current one."""
    mac = salted_hmac(_SALT, f"{job_id}:{n}:{fence}", secret=secret, algorithm="sha256").digest()
    return _BRAND + base64.urlsafe_b64encode(mac).decode().rstrip("=")


def token_of(attempt: JobAttempt) -> str:
    """The token as it was issued, even if the service's secret has changed since."""
    about = (attempt.job_id, attempt.n, attempt.fence)
    secrets = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    tokens = [attempt_token(*about, secret=secret) for secret in secrets]
    known = [token for token in tokens if token_digest(token) == attempt.token_sha256]
    return known[0] if known else tokens[0]


def token_digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def attempt_of_token(token: str) -> JobAttempt | None:
    """Looked up by the digest of 256 secret bits, so its timing reveals nothing."""
    return JobAttempt.objects.select_related("job").filter(token_sha256=token_digest(token)).first()
