"""Encryption of secrets in the database, with keys derived from the installation's key.

Invariant: encrypted with the current key, decrypted with it or any former key, so that the key can be rotated.
"""

from collections.abc import Callable

from cryptography.fernet import Fernet, MultiFernet
from django.conf import settings

Derive = Callable[[bytes], bytes]
"""From the installation's key to 32 bytes in URL-safe base64."""


def box(derive: Derive) -> MultiFernet:
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return MultiFernet([Fernet(derive(key.encode())) for key in keys])
