"""Rate limit of page requests per user, so that a session does not evade the rate limits of keys.

Invariants:
- the limit is per user, across sessions and tabs; `backend.api.limits.rate_limit` counts requests of keys;
- counting needs no database query: each web process counts by itself, and each lets the full rate through;
- a refused request is not counted; the next one passes after `Retry-After`.
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

PAGES_A_MINUTE: Final = 3_000  # as for a key's reads; fifty tabs that poll once a second
WINDOW_S: Final = 60.0


class Pace:
    """A leaky bucket per user, as one number, as in `backend.api.limits.counters`. At most one entry per user."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._full_at: dict[object, float] = {}

    def wait_s(self, person: object, *, most: float, window_s: float = WINDOW_S) -> float:
        """Counts a request and returns 0, or returns the seconds until one may pass. `most`: in a window."""
        with self._guard:
            now = self._clock()
            full_at = max(self._full_at.get(person, now), now) + window_s / most
            late_s = full_at - now - window_s
            if late_s <= 1e-6:  # rounding error
                self._full_at[person] = full_at
                return 0.0
            return late_s


pace = Pace()


def keep_pace(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[[HttpRequest], HttpResponseBase]:
    """Middleware. After authentication, before every page."""

    def middleware(request: HttpRequest) -> HttpResponseBase:
        if request.path.startswith(FOR_PROGRAMS) or not request.user.is_authenticated:
            return get_response(request)
        a_minute = max(1.0, PAGES_A_MINUTE * settings.ENVIRONMENT.rate_scale)
        wait_s = math.ceil(pace.wait_s(request.user.pk, most=a_minute))
        if not wait_s:
            return get_response(request)
        context = {"wait_s": wait_s, "a_minute": int(a_minute)}
        response = render(request, "account/too_often.html", context, status=429)
        response["Retry-After"] = str(wait_s)
        return response

    return middleware
