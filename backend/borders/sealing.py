"""Boxes for secrets that lie in the database, under keys derived from the installation's own.

Invariant: sealed with the present key, opened with it or with any of before, so that the key can be changed.
"""

from collections.abc import Callable

from cryptography.fernet import Fernet, MultiFernet
from django.conf import settings

Derive = Callable[[bytes], bytes]
"""From the installation's key to 32 bytes in URL-safe base64."""


def box(derive: Derive) -> MultiFernet:
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return MultiFernet([Fernet(derive(key.encode())) for key in keys])
