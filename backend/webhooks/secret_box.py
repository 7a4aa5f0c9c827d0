"""Webhook signing secrets: `whsec_` and 32 random bytes in base64, as Standard Webhooks defines them.

Invariants:
- a secret is shown once, at creation; the database holds it encrypted under a key derived from the installation's, so
  a copy of the database can sign nothing;
- during a rotation both secrets sign, so a receiver may use either.
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
    return box(_derive).encrypt(secret.encode()).decode()


def unseal(sealed: str) -> str:
    return box(_derive).decrypt(sealed.encode()).decode()


def signature_header(message_id: str, timestamp: int, body: str, *, secrets_in_use: Sequence[str]) -> str:
    """`v1,<base64>` per secret, separated by spaces."""
    message = f"{message_id}.{timestamp}.{body}".encode()
    return " ".join(f"v1,{_sign(secret, message)}" for secret in secrets_in_use)


def _sign(secret: str, message: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(PREFIX))
    return base64.b64encode(hmac.new(key, message, hashlib.sha256).digest()).decode()


def reseal(sealed: str) -> str:
    """Encrypts it again under the current key."""
    return box(_derive).rotate(sealed.encode()).decode()


def _derive(key: bytes) -> bytes:
    derive = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"laminar webhook secrets")
    return base64.urlsafe_b64encode(derive.derive(key))
