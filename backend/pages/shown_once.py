"""Secrets that a form creates and the next page shows once: a key, a signing secret, a link.

    form ──POST──▶ secret created, sealed and stored ──redirect──▶ page?made=… takes it out and shows it

Invariants:
- after the redirect, reloading the page creates nothing and shows no secret again;
- until it is shown, a secret is in its creator's session for minutes at most, sealed under a key derived from the
  installation's: a copy of the database does not reveal it.
"""

import base64
import json
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from backend.borders.sealing import box

MADE: Final = "made"
_PLACE: Final = "shown once"
_MOST: Final = 4  # forms sent from several windows at once; the oldest is dropped
_WITHIN_S: Final = 300


def shown_at(request: HttpRequest, address: str, made: str, secrets: Mapping[str, str]) -> HttpResponse:
    """`made`: the id of the new object, for the URL."""
    kept = [each for each in request.session.get(_PLACE, []) if each[0] != made]
    sealed = box(_derived).encrypt(json.dumps(dict(secrets)).encode()).decode()
    request.session[_PLACE] = [*kept, [made, sealed]][-_MOST:]
    return redirect(f"{address}{'&' if '?' in address else '?'}{urlencode({MADE: made})}")


def taken_out(request: HttpRequest) -> dict[str, str]:
    """Empty if the page was shown before, or nothing was created."""
    made, kept = request.GET.get(MADE, ""), request.session.get(_PLACE, [])
    found = next((sealed for name, sealed in kept if name == made), None)
    if found is None or request.method != "GET":
        return {}
    request.session[_PLACE] = [each for each in kept if each[0] != made]
    try:
        secrets: dict[str, str] = json.loads(box(_derived).decrypt(found.encode(), ttl=_WITHIN_S))
    except InvalidToken:  # expired, or the installation's key has changed
        return {}
    return {MADE: made} | secrets


def _derived(key: bytes) -> bytes:
    derive = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"laminar secrets shown once")
    return base64.urlsafe_b64encode(derive.derive(key))
