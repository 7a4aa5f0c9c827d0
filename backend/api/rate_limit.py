"""Rates of the REST API: how often a team, and a key of it, may do one thing.

    a request      the team's bucket of requests, then its key's bucket of reads or of writes
    what it sends  the team's bucket of kibibytes, from a page too: specs, and answers kept for those who ask again
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
from backend.api.bodies import MAX_BODY_BYTES
from backend.api.counters import Allowance
from backend.api.problems import TooManyRequests
from backend.api.streamed_body import MEDIA_TYPE


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
# A sweep of a thousand specs with 100 kB of code each is a fifth of it; so a team fills no disk in a night.
SENT = Rate(name="sent-kib", limit=512 * 1024, window_s=86_400)
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
    return _passed(_taken([(rate, of)]))


def take_sent(num_bytes: int, *, of: str) -> Allowance:
    """Counts what a team's page sent. Raises `RateExceeded`."""
    return _passed(_taken([(SENT, of)], kibibytes=_kibibytes(num_bytes)))


def may_look_up(teams: Iterable[str]) -> bool:
    """Counts a look-up of somebody who is in these teams."""
    return all(_taken([(LOOK_UPS, team)]).allowed for team in sorted(teams))


def _taken(rates: Sequence[tuple[Rate, str]], *, kibibytes: int = 1) -> Allowance:
    """Of the last rate that was asked: the first that refuses, or the last of all."""
    scale = settings.ENVIRONMENT.rate_scale
    uses = [
        counters.Use(
            rate.name,
            whose,
            max(1, round(rate.limit * scale)),
            rate.window_s,
            num=kibibytes if rate.name == SENT.name else 1,
        )
        for rate, whose in rates
    ]
    return counters.take_in_turn(uses)[-1]


def _passed(allowance: Allowance) -> Allowance:
    if not allowance.allowed:
        raise RateExceeded(allowance)
    return allowance


def _kibibytes(num_bytes: int) -> int:
    """Begun ones count: a row has a size of its own."""
    return num_bytes // 1024 + 1


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
        if request.method in _SAFE:
            rates, kibibytes = [(REQUESTS, asking.team), (READS, asking.key)], 1
        else:
            rates, kibibytes = [(REQUESTS, asking.team), (SENT, asking.team), (WRITES, asking.key)], _sent_by(request)
        allowance = _taken(rates + ([(self._also(), asking.team)] if self._also else []), kibibytes=kibibytes)
        request.META[_ALLOWANCE] = allowance
        return allowance.allowed


def _sent_by(request: HttpRequest) -> int:
    """A part of an upload is not read yet, and counted in the team's storage; what is too large will be refused."""
    is_part = request.content_type == MEDIA_TYPE.decode()
    is_refused = int(request.META.get("CONTENT_LENGTH") or 0) > MAX_BODY_BYTES
    return 1 if is_part or is_refused else _kibibytes(len(request.body))


def allowance_of(request: HttpRequest) -> Allowance | None:
    """The rest of the caller's rate, once it was taken from."""
    found = request.META.get(_ALLOWANCE)
    return found if isinstance(found, Allowance) else None


def counted_at(request: HttpRequest) -> datetime:
    """The moment at which the request was counted: the database's time, without asking for it once more."""
    allowance = allowance_of(request)
    assert allowance is not None, "every route of the API counts its requests"
    return allowance.at
