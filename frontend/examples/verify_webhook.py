"""Is this message ours? Standard Webhooks: HMAC-SHA256 over id, time and body, with the webhook's secret."""

import base64
import hashlib
import hmac
import time
from collections.abc import Mapping

LONGEST_AGE_S = 5 * 60


def is_ours(secret: str, headers: Mapping[str, str], body: bytes, *, now: float | None = None) -> bool:
    """`secret`: whsec_…, as it was shown once; `headers`: lower-case names; `body`: the bytes as they came."""
    try:
        message, sent_at = headers["webhook-id"], int(headers["webhook-timestamp"])
        signatures = headers["webhook-signature"].split(" ")
    except (KeyError, ValueError):
        return False
    if abs((time.time() if now is None else now) - sent_at) > LONGEST_AGE_S:
        return False  # somebody may have kept it
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = hmac.new(key, f"{message}.{sent_at}.".encode() + body, hashlib.sha256).digest()
    ours = "v1," + base64.b64encode(signed).decode()
    return any(hmac.compare_digest(ours, each) for each in signatures)  # two, for a day after a new secret was made
