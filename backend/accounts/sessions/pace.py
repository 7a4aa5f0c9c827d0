"""How often one person's browsers may ask for pages, so that a session is no way around the rates of keys.

Invariants:
- a person is counted, however many sessions and tabs are theirs; what keys ask is counted by `backend.api.rate_limit`;
- counting costs no trip to the database: each web process counts for itself, so that of several each lets as much pass;
- a refused request counts nothing; the next passes after `Retry-After`.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import Final

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import render

from backend.borders.wall import FOR_PROGRAMS

PAGES_A_MINUTE: Final = 3_000  # a key's reads; fifty tabs that pull once a second
_WINDOW_S: Final = 60.0


class Pace:
    """A leaky bucket a person, in one number, as in `backend.api.counters`. As many of them as there are people."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._full_at: dict[object, float] = {}

    def wait_s(self, person: object, *, a_minute: float) -> float:
        """Counts a request and is 0, or says in how many seconds one may pass."""
        with self._guard:
            now = self._clock()
            full_at = max(self._full_at.get(person, now), now) + _WINDOW_S / a_minute
            late_s = full_at - now - _WINDOW_S
            if late_s <= 1e-6:  # of adding fractions
                self._full_at[person] = full_at
                return 0.0
            return late_s


pace = Pace()


def keep_pace(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[[HttpRequest], HttpResponseBase]:
    """Middleware. Behind authentication, before every page."""

    def middleware(request: HttpRequest) -> HttpResponseBase:
        if request.path.startswith(FOR_PROGRAMS) or not request.user.is_authenticated:
            return get_response(request)
        a_minute = max(1.0, PAGES_A_MINUTE * settings.ENVIRONMENT.rate_scale)
        wait_s = math.ceil(pace.wait_s(request.user.pk, a_minute=a_minute))
        if not wait_s:
            return get_response(request)
        told = {"wait_s": wait_s, "a_minute": int(a_minute)}
        answer = render(request, "account/too_often.html", told, status=429)
        answer["Retry-After"] = str(wait_s)
        return answer

    return middleware
