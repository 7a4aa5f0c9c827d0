"""Rates of the REST API: how often a team, and a key of it, may do one thing.

    a request      the team's bucket of requests, then its key's bucket of reads or of writes
    a submission   the team's bucket of submissions as well, from a page too
    a stream       the team's bucket of streams as well
    a look-up      on a socket: the team's bucket of those
    no such key    the bucket of the address that it came from

Counted by `counters`, so exact however many web processes there are. A key has a bucket of its own only so that one
program of a team leaves something to the others: what a team may do does not grow with the number of its keys.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

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
REQUESTS = Rate(name="team", limit=9_000, window_s=60)  # three programs that read as fast as they may
STREAMS = Rate(name="stream", limit=300, window_s=60)  # opened, not open: a client that reconnects in a loop is slowed
LOOK_UPS = Rate(name="look-up", limit=3_000, window_s=60)  # as reads: each is one
# Somebody pastes a wrong key a few times, a program that was not told of the new one goes on with the old.
UNKNOWN_KEYS = Rate(name="unknown-key", limit=300, window_s=60)
_ALLOWANCE = "laminar.allowance"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class RateExceeded(TooManyRequests):
    """Your team, this key or your address asks too often; Retry-After says when to go on."""

    def __init__(self, allowance: Allowance) -> None:
        super().__init__()
        self.allowance = allowance
        self.headers = allowance.headers


def take(rate: Rate, *, of: str) -> Allowance:
    """Counts one use of a team's, or of an address'. Raises `RateExceeded` if it is one too many."""
    allowance = _taken([(rate, of)])
    if not allowance.allowed:
        raise RateExceeded(allowance)
    return allowance


def may_look_up(teams: Iterable[str]) -> bool:
    """Counts a look-up of somebody who is in these teams."""
    return all(_taken([(LOOK_UPS, team)]).allowed for team in sorted(teams))


def _taken(rates: Sequence[tuple[Rate, str]]) -> Allowance:
    """Of the last rate that was asked: the first that refuses, or the last of all."""
    scale = settings.ENVIRONMENT.rate_scale
    uses = [counters.Use(rate.name, whose, max(1, round(rate.limit * scale)), rate.window_s) for rate, whose in rates]
    return counters.take_in_turn(uses)[-1]


class TeamAndKey(NamedTuple):
    team: str
    key: str


class EveryRequest(BaseThrottle):
    """The throttle of every route: ninja asks it once the caller is known, before anything else is looked at.

    `also`: a rate that the team's requests to this route take from as well, and whose allowance they are told.
    """

    def __init__(self, names: Callable[[HttpRequest], TeamAndKey], *, also: Callable[[], Rate] | None = None) -> None:
        self._names = names
        self._also = also

    def allow_request(self, request: HttpRequest) -> bool:
        asking = self._names(request)
        rates = [(REQUESTS, asking.team), (READS if request.method in _SAFE else WRITES, asking.key)]
        allowance = _taken(rates + ([(self._also(), asking.team)] if self._also else []))
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
