"""The secrets that webhooks are signed with: `whsec_` and 32 random bytes in base64, as Standard Webhooks has them.

Invariants:
- a secret is shown once, when it is made; in the database it lies sealed under a key that is derived from the
  installation's own, so a copy of the database signs nothing;
- during a rotation both secrets sign, and a receiver may know either.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from backend.borders.sealing import box

PREFIX = "whsec_"


def new_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def seal(secret: str) -> str:
    return box(_derived).encrypt(secret.encode()).decode()


def unseal(sealed: str) -> str:
    return box(_derived).decrypt(sealed.encode()).decode()


def signature_header(message_id: str, timestamp: int, body: str, *, secrets_in_use: Sequence[str]) -> str:
    """`v1,<base64>` of each secret, with a space between."""
    message = f"{message_id}.{timestamp}.{body}".encode()
    return " ".join(f"v1,{_sign(secret, message)}" for secret in secrets_in_use)


def _sign(secret: str, message: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(PREFIX))
    return base64.b64encode(hmac.new(key, message, hashlib.sha256).digest()).decode()


def reseal(sealed: str) -> str:
    """Under the present key."""
    return box(_derived).rotate(sealed.encode()).decode()


def _derived(key: bytes) -> bytes:
    derive = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"laminar webhook secrets")
    return base64.urlsafe_b64encode(derive.derive(key))
