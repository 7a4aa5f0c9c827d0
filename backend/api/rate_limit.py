"""How often one caller of the REST API may do one thing.

Every request takes from its key's bucket of reads or of writes; a submission also from that of submissions, an event
stream from that of streams. Counted by `counters`, so exact however many web processes there are.
"""

from collections.abc import Callable
from dataclasses import dataclass

from django.conf import settings
from django.http import HttpRequest
from ninja.throttling import BaseThrottle

from backend.api import counters
from backend.api.counters import Allowance
from backend.api.problems import TooManyRequests


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    name: str
    limit: int
    window_s: int


# Far above what a person or a sweep does, far below what would hurt: a submit is one transaction of milliseconds.
SUBMITS = Rate(name="submit", limit=300, window_s=60)
READS = Rate(name="read", limit=3_000, window_s=60)
WRITES = Rate(name="write", limit=1_200, window_s=60)
STREAMS = Rate(name="stream", limit=60, window_s=60)  # opened, not open: a client that reconnects in a loop is slowed
_ALLOWANCE = "laminar.allowance"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class RateExceeded(TooManyRequests):
    """This caller asks too often; Retry-After says when to go on."""

    def __init__(self, allowance: Allowance) -> None:
        super().__init__()
        self.allowance = allowance
        self.headers = allowance.headers


def take(rate: Rate, *, caller: str) -> Allowance:
    """Counts one request. Raises `RateExceeded` if it is one too many."""
    limit = max(1, round(rate.limit * settings.ENVIRONMENT.rate_scale))
    allowance = counters.take(rate.name, caller, limit, rate.window_s)
    if not allowance.allowed:
        raise RateExceeded(allowance)
    return allowance


class EveryRequest(BaseThrottle):
    """ninja asks it once the caller is known, before anything else is looked at."""

    def __init__(self, name_of_caller: Callable[[HttpRequest], str]) -> None:
        self._name_of_caller = name_of_caller

    def allow_request(self, request: HttpRequest) -> bool:
        rate = READS if request.method in _SAFE else WRITES
        try:
            allowance = take(rate, caller=self._name_of_caller(request))
        except RateExceeded as refusal:
            allowance = refusal.allowance
        request.META[_ALLOWANCE] = allowance
        return allowance.allowed


def allowance_of(request: HttpRequest) -> Allowance | None:
    """What is left of the caller's rate, once it was taken from."""
    found = request.META.get(_ALLOWANCE)
    return found if isinstance(found, Allowance) else None
