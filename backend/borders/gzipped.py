"""Compression of responses: pages, JSON and CSV. Static files are compressed in advance.

An attacker who can place text into a response and observe its compressed length repeatedly can recover a secret in the
same response (BREACH). So:

Invariants:
- a response to a browser that could repeat input of its request is not compressed: no form, no refusal, no query except
  the numeric parameters in `_NUMERIC`;
- requests with an API key may have any query: no other site can make a browser send the key;
- every compressed response is padded by a random number of bytes, so one observation of its length reveals little;
- a response with an ETag is left alone: tags are strong here (`backend.api.etags`), and a compressed body would need
  its own tag, which could not be used in `If-Match`.
"""

import re
from collections.abc import Callable
from typing import Final

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers
from django.utils.text import compress_string

_KINDS: Final = ("text/html", "application/json", "text/csv")
_SMALLEST: Final = 1_000  # a smaller response fits one packet anyway
_MOST_PADDING: Final = 100  # bytes, drawn per response
_NUMERIC: Final = frozenset({"after", "page", "part", "step"})
_A_NUMBER: Final = re.compile(r"[0-9]{0,12}", re.ASCII)
_TAKES_GZIP: Final = re.compile(r"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))")


def takes_gzip(request: HttpRequest) -> bool:
    return bool(_TAKES_GZIP.search(request.headers.get("Accept-Encoding", "")))


def gzip_answers(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[[HttpRequest], HttpResponseBase]:
    """Middleware. Outside of all middleware that changes a response's body."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        if not isinstance(response, HttpResponse) or not response.get("Content-Type", "").startswith(_KINDS):
            return response  # streams included: they are sent as they come
        patch_vary_headers(response, ("Accept-Encoding",))
        if not takes_gzip(request) or not _may_be_smaller(response) or not _repeats_nothing(request):
            return response
        response.content = compress_string(response.content, max_random_bytes=_MOST_PADDING)
        response["Content-Encoding"] = "gzip"
        response["Content-Length"] = str(len(response.content))
        return response

    return answer


def _may_be_smaller(response: HttpResponse) -> bool:
    is_taken = "Content-Encoding" in response or "ETag" in response
    return response.status_code == 200 and not is_taken and len(response.content) >= _SMALLEST


def _repeats_nothing(request: HttpRequest) -> bool:
    if request.method != "GET":
        return False
    if "Authorization" in request.headers:
        return True
    return all(
        name in _NUMERIC and _A_NUMBER.fullmatch(value) for name, values in request.GET.lists() for value in values
    )
