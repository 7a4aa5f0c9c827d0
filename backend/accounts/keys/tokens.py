"""The text of an API key: lam_live_<8 public>_<43 secret><6 checksum>.

Invariants:
- the prefix (up to the public part) identifies the key's row and may be shown; the secret has 256 bits of entropy;
- the checksum rejects malformed keys, and identifies leaked ones, without a database query;
- only the SHA-256 of the whole text is stored.
"""

import hashlib
import hmac
import re
import secrets
import string
import zlib

_BRAND = "lam_live_"
_PUBLIC, _SECRET, _CHECKSUM = 8, 43, 6  # 62^43 > 2^256; 62^6 > 2^32, the range of a CRC-32
_BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
_SHAPE = re.compile(rf"{_BRAND}[0-9A-Za-z]{{{_PUBLIC}}}_[0-9A-Za-z]{{{_SECRET + _CHECKSUM}}}", re.ASCII)


def new_key_text() -> str:
    body = f"{_BRAND}{_random_text(_PUBLIC)}_{_random_text(_SECRET)}"
    return body + _checksum(body)


def is_well_formed(text: str) -> bool:
    return _SHAPE.fullmatch(text) is not None and _checksum(text[:-_CHECKSUM]) == text[-_CHECKSUM:]


def prefix_of(text: str) -> str:
    return text[: len(_BRAND) + _PUBLIC]


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def matches(text: str, digest: str) -> bool:
    return hmac.compare_digest(digest_of(text), digest)


def _random_text(length: int) -> str:
    return "".join(secrets.choice(_BASE62) for _ in range(length))


def _checksum(body: str) -> str:
    rest, digits = zlib.crc32(body.encode()), ""
    for _ in range(_CHECKSUM):
        rest, digit = divmod(rest, len(_BASE62))
        digits = _BASE62[digit] + digits
    return digits
