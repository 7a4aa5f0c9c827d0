"""Rate limits by network address on pages that need no sign-in."""

from collections.abc import Callable
from functools import wraps

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from backend.api.limits.counters import take
from backend.api.request_context import stranger

LinkView = Callable[[HttpRequest, str], HttpResponse]


def links_at_most(limit: tuple[str, int, int]) -> Callable[[LinkView], LinkView]:
    """Decorates the view of a link with a token: limits how many tokens an address can try."""

    def around(view: LinkView) -> LinkView:
        @wraps(view)
        def limited(request: HttpRequest, token: str) -> HttpResponse:
            return render(request, "429.html", status=429) if too_many(limit) else view(request, token)

        return limited

    return around


def too_many(limit: tuple[str, int, int]) -> bool:
    """Counts this request. A limit is (bucket, number, seconds)."""
    bucket, number, window_s = limit
    return not take(bucket, stranger(), number, window_s).allowed
