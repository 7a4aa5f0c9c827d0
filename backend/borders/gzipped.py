"""Answers made small on their way out: pages, JSON and tables for spreadsheets. Static files come compressed already.

Whoever can put words of their own into an answer and see how long it gets, again and again, can spell out a secret in
the same answer (BREACH). So:

Invariants:
- an answer to a browser that repeats anything of its request is not compressed: no form, no refusal, no query but the
  few of `_SAY_NOTHING`, whose values are numbers;
- whoever sends a key of the API sends it by themselves: no other site can make a browser do it. Their queries are free;
- every compressed answer is a random number of bytes longer, so that one look at its length tells little;
- an answer with an ETag is left alone: tags are strong here (`backend.api.etags`), and a compressed body would need
  another one, with which `If-Match` could not speak of the thing itself.
"""

import re
from collections.abc import Callable
from typing import Final

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers
from django.utils.text import compress_string

_KINDS: Final = ("text/html", "application/json", "text/csv")
_SMALLEST: Final = 1_000  # below that, an answer travels in one packet as it is
_MOST_PADDING: Final = 100  # bytes, drawn for each answer
_SAY_NOTHING: Final = frozenset({"after", "page", "part", "step"})
_A_NUMBER: Final = re.compile(r"[0-9]{0,12}", re.ASCII)
_TAKES_GZIP: Final = re.compile(r"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))")


def takes_gzip(request: HttpRequest) -> bool:
    return bool(_TAKES_GZIP.search(request.headers.get("Accept-Encoding", "")))


def gzip_answers(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[[HttpRequest], HttpResponseBase]:
    """Middleware. It stands outside of whatever still writes into an answer."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        if not isinstance(response, HttpResponse) or not response.get("Content-Type", "").startswith(_KINDS):
            return response  # a stream among them: it is sent as it comes
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
        name in _SAY_NOTHING and _A_NUMBER.fullmatch(value) for name, values in request.GET.lists() for value in values
    )
