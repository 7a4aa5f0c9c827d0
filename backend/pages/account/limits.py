"""Limits by address on pages that anybody may open."""

from collections.abc import Callable
from functools import wraps

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from backend.api.counters import take
from backend.api.request_context import stranger

LinkView = Callable[[HttpRequest, str], HttpResponse]


def links_at_most(limit: tuple[str, int, int]) -> Callable[[LinkView], LinkView]:
    """Around the view behind a link with a token, so that nobody tries many."""

    def around(view: LinkView) -> LinkView:
        @wraps(view)
        def limited(request: HttpRequest, token: str) -> HttpResponse:
            return render(request, "429.html", status=429) if too_many(limit) else view(request, token)

        return limited

    return around


def too_many(limit: tuple[str, int, int]) -> bool:
    """Counts the present request. A limit is (bucket, number, seconds)."""
    bucket, number, window_s = limit
    return not take(bucket, stranger(), number, window_s).allowed
