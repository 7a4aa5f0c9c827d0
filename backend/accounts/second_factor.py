"""Second factors: secrets encrypted at rest, and the requirement of a team to have one.

Invariants:
- a copy of the database alone yields no codes: secrets are encrypted with a key derived from SECRET_KEY;
- in a team that requires it, an owner or admin without a second factor has a member's rights everywhere (`rights`), and
  the team's pages show a notice.
"""

import base64
import hashlib

from allauth.mfa.adapter import DefaultMFAAdapter

from backend.borders.sealing import box


def reseal(sealed: str) -> str:
    """Encrypts the secret again, under the current key."""
    return box(_derived).rotate(sealed.encode()).decode()


def _derived(key: bytes) -> bytes:
    return base64.urlsafe_b64encode(hashlib.sha256(b"mfa:" + key).digest())


class SecondFactorAdapter(DefaultMFAAdapter):  # type: ignore[misc]  # allauth ships no types
    def encrypt(self, text: str) -> str:
        return box(_derived).encrypt(text.encode()).decode()

    def decrypt(self, encrypted_text: str) -> str:
        return box(_derived).decrypt(encrypted_text.encode()).decode()
