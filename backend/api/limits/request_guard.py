"""Refuses requests before any other check: unknown methods, and plain http of programs where the site's address is
https (browsers are redirected to https).

Invariants:
- a program that is configured with http:// by mistake is refused every time. A redirect would serve it, and its key
  would be sent in the clear with every request, unnoticed;
- the engine and the reader of /metrics connect to the web server itself, which has no certificate: they are refused
  only if they came through a proxy, which has one.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from backend.api.problems import problem_response
from backend.borders.proxies import is_proxied
from backend.borders.wall import FOR_PROGRAMS
from backend.errors import Denied

_INSIDE: Final = ("/internal/engine/", "/metrics")
METHODS: Final = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")


class PlainHttp(Denied):
    """Use https://. The API key in this request was sent in the clear: revoke it."""

    code = "https_only"


def admit(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[[HttpRequest], HttpResponseBase]:
    def answer(request: HttpRequest) -> HttpResponseBase:
        if request.method not in METHODS:
            return HttpResponse(status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": ", ".join(METHODS)})
        if settings.SECURE_SSL_REDIRECT and not request.is_secure() and _wants_https(request):
            return problem_response(request, PlainHttp())
        return get_response(request)

    return answer


def _wants_https(request: HttpRequest) -> bool:
    if request.path.startswith(_INSIDE):
        return is_proxied(request)
    return request.path.startswith(FOR_PROGRAMS)
