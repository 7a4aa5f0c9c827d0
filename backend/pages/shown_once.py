"""Secrets that a form makes and the page behind it shows once: a key, a signing secret, a link.

    form ──POST──▶ it is made, sealed and put by ──redirect──▶ page?made=… takes it out and shows it

Invariants:
- a redirect stands between making and showing: to load the page again makes nothing, and shows no secret again;
- on its way a secret lies in the maker's own session, sealed under a key derived from the installation's, for minutes
  at most: a copy of the database tells nobody what it was.
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
_MOST: Final = 4  # forms sent from several windows at once; the oldest goes
_WITHIN_S: Final = 300


def shown_at(request: HttpRequest, address: str, made: str, secrets: Mapping[str, str]) -> HttpResponse:
    """`made`: the id of what was made, which the address will name."""
    kept = [each for each in request.session.get(_PLACE, []) if each[0] != made]
    sealed = box(_derived).encrypt(json.dumps(dict(secrets)).encode()).decode()
    request.session[_PLACE] = [*kept, [made, sealed]][-_MOST:]
    return redirect(f"{address}{'&' if '?' in address else '?'}{urlencode({MADE: made})}")


def taken_out(request: HttpRequest) -> dict[str, str]:
    """Nothing if the page was shown before, or nothing was made."""
    made, kept = request.GET.get(MADE, ""), request.session.get(_PLACE, [])
    found = next((sealed for name, sealed in kept if name == made), None)
    if found is None or request.method != "GET":
        return {}
    request.session[_PLACE] = [each for each in kept if each[0] != made]
    try:
        secrets: dict[str, str] = json.loads(box(_derived).decrypt(found.encode(), ttl=_WITHIN_S))
    except InvalidToken:  # it was not asked for in time, or the installation has another key now
        return {}
    return {MADE: made} | secrets


def _derived(key: bytes) -> bytes:
    derive = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"laminar secrets shown once")
    return base64.urlsafe_b64encode(derive.derive(key))
