"""Rejects input that no path, query, form or cookie may hold, before every page.

REST validates its parameters by their own types (`types`) and its bodies in `backend.api.bodies`; only its paths and
cookies are checked here.

Invariants:
- no NUL and no half of a surrogate pair reaches a view, Django's session or allauth: Postgres can store neither, and
  would raise the error instead;
- a malformed cookie is dropped: its sender is signed out, without an error.
"""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.http.cookie import parse_cookie
from django.http.response import HttpResponseBase

from backend.borders.types import is_storable

FOR_PROGRAMS: Final = ("/api/", "/internal/")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def wall(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[[HttpRequest], HttpResponseBase]:
    """Middleware, before all middleware that reads a cookie."""

    def walled(request: HttpRequest) -> HttpResponseBase:
        if not is_storable(request.path):
            raise Http404
        for name in [name for name, value in request.COOKIES.items() if not is_storable(name + value)]:
            del request.COOKIES[name]
        if not request.path.startswith(FOR_PROGRAMS):
            for sent in (request.GET, request.POST):
                if not all(map(is_storable, _walk_texts(sent))):
                    text = "The URL or the form contains an invalid character."
                    return HttpResponse(text, status=400, content_type="text/plain; charset=utf-8")
        return get_response(request)

    return walled


def without_hostile_cookies(app: App) -> App:
    """The same for sockets, whose session is read from the header."""

    async def walled(scope: Scope, receive: Receive, send: Send) -> None:
        scope["headers"] = [
            (name, value) for name, value in scope["headers"] if name != b"cookie" or _is_storable_cookie(value)
        ]
        await app(scope, receive, send)

    return walled


def _is_storable_cookie(header: bytes) -> bool:
    return all(is_storable(name + value) for name, value in parse_cookie(header.decode("latin1")).items())


def _walk_texts(sent: QueryDict) -> Iterable[str]:
    for name, values in sent.lists():
        yield name
        yield from (value for value in values if isinstance(value, str))
