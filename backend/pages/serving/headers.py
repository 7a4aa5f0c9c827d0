"""Security headers: the second defence behind escaping.

Invariants:
- no inline script and no inline event handler ever runs; scripts, styles and connections come from this origin alone;
- style *attributes* are allowed, because Plotly writes them into its charts; style *elements* are not, except an
  empty one, which Plotly fills through the CSSOM;
- responses are not cached unless they allow it themselves: static files do, pages and the API do not, so the back
  button shows nothing after a sign-out;
- a response with a policy of its own keeps it.
"""

from collections.abc import Awaitable, Callable
from typing import Final, cast

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

_EMPTY_STYLE = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"  # the hash of empty content
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        f"style-src 'self' {_EMPTY_STYLE}",
        "style-src-attr 'unsafe-inline'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "object-src 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
_UNLESS_SAID: Final = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"}

Sync = Callable[[HttpRequest], HttpResponseBase]
Async = Callable[[HttpRequest], Awaitable[HttpResponseBase]]


@sync_and_async_middleware
def guard_answers(get_response: Sync | Async) -> Sync | Async:
    if iscoroutinefunction(get_response):
        answer_later = cast(Async, get_response)

        async def later(request: HttpRequest) -> HttpResponseBase:
            return _guarded(await answer_later(request))

        return later
    answer = cast(Sync, get_response)

    def at_once(request: HttpRequest) -> HttpResponseBase:
        return _guarded(answer(request))

    return at_once


def _guarded(response: HttpResponseBase) -> HttpResponseBase:
    for name, value in _UNLESS_SAID.items():
        response.headers.setdefault(name, value)
    return response
