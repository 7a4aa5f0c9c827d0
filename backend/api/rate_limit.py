"""Rates of the REST API: how often one caller may do one thing.

Every request takes from its key's bucket of reads or of writes; a submission also from that of submissions, an event
stream from that of streams. Counted by `counters`, so exact however many web processes there are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

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
    allowance = _taken([rate], caller)
    if not allowance.allowed:
        raise RateExceeded(allowance)
    return allowance


def _taken(rates: Sequence[Rate], caller: str) -> Allowance:
    """Of the last rate that was asked: the first that refuses, or the last of all."""
    scale = settings.ENVIRONMENT.rate_scale
    uses = [counters.Use(rate.name, caller, max(1, round(rate.limit * scale)), rate.window_s) for rate in rates]
    return counters.take_in_turn(uses)[-1]


class EveryRequest(BaseThrottle):
    """The throttle of every route: ninja asks it once the caller is known, before anything else is looked at.

    `also`: a rate that the route's requests take from as well, and whose allowance they are told.
    """

    def __init__(self, name_of_caller: Callable[[HttpRequest], str], *, also: Callable[[], Rate] | None = None) -> None:
        self._name_of_caller = name_of_caller
        self._also = also

    def allow_request(self, request: HttpRequest) -> bool:
        rates = [READS if request.method in _SAFE else WRITES, *([self._also()] if self._also else [])]
        allowance = _taken(rates, self._name_of_caller(request))
        request.META[_ALLOWANCE] = allowance
        return allowance.allowed


def allowance_of(request: HttpRequest) -> Allowance | None:
    """The rest of the caller's rate, once it was taken from."""
    found = request.META.get(_ALLOWANCE)
    return found if isinstance(found, Allowance) else None


def counted_at(request: HttpRequest) -> datetime:
    """The moment at which the request was counted: the database's time, without asking for it once more."""
    allowance = allowance_of(request)
    assert allowance is not None, "every route of the API counts its requests"
    return allowance.at
