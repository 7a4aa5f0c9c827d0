"""Identifiers: a prefix that names the type, and enough random characters to be unguessable."""

import secrets

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's: no i, l, o, u to misread


def new_id(prefix: str) -> str:
    return f"{prefix}_{''.join(_ALPHABET[byte % 32] for byte in secrets.token_bytes(20))}"
