"""Rate limits of the REST API, per team and per key.

    a request      the team's bucket of requests, then its key's bucket of reads or of writes
    bytes sent     the team's bucket of kibibytes, also from a page: specs, and stored responses
    a submission   also the team's bucket of submissions, also from a page
    a stream       also the team's bucket of streams
    a look-up      on a socket: the team's bucket of those, in each web process (`telemetry.live.consumers`)
    unknown key    the bucket of the client's address

All but look-ups are counted by `counters`, so exact with any number of web processes. A key has its own bucket only so
that one program of a team leaves capacity to the others: a team's limits do not grow with the number of its keys.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.conf import settings
from django.http import HttpRequest
from ninja.throttling import BaseThrottle

from backend.api.bodies import MAX_BODY_BYTES
from backend.api.limits import counters
from backend.api.limits.counters import Allowance
from backend.api.problems import TooManyRequests
from backend.api.streamed_body import MEDIA_TYPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    name: str
    limit: int
    window_s: int


# Far above a user's or a sweep's rate, far below a harmful one: a submit is one transaction of milliseconds.
SUBMITS = Rate(name="submit", limit=300, window_s=60)
READS = Rate(name="read", limit=3_000, window_s=60)
WRITES = Rate(name="write", limit=1_200, window_s=60)
REQUESTS = Rate(name="team", limit=9_000, window_s=60)  # three programs that read at their limit
STREAMS = Rate(name="stream", limit=300, window_s=60)  # opened, not open: a client that reconnects in a loop is slowed
# A sweep of a thousand specs with 100 kB of code each takes a fifth. Keeps a team from filling a disk overnight.
SENT = Rate(name="sent-kib", limit=512 * 1024, window_s=86_400)
LOOK_UPS = Rate(name="look-up", limit=3_000, window_s=60)  # as reads
# A user pastes a wrong key a few times; a program keeps using a key that was replaced.
UNKNOWN_KEYS = Rate(name="unknown-key", limit=300, window_s=60)
_ALLOWANCE = "laminar.allowance"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class RateExceeded(TooManyRequests):
    """Rate limit of your team, key or address exceeded. Retry after the time in Retry-After."""

    def __init__(self, allowance: Allowance) -> None:
        super().__init__()
        self.allowance = allowance
        self.headers = allowance.headers


def take(rate: Rate, *, of: str) -> Allowance:
    """Counts one use of a team or an address. Raises `RateExceeded`."""
    return _refuse_exceeded(_count_uses([(rate, of)]))


def take_sent(num_bytes: int, *, of: str) -> Allowance:
    """Counts the bytes that a team sent through a page. Raises `RateExceeded`."""
    return _refuse_exceeded(_count_uses([(SENT, of)], kibibytes=_round_up_kibibytes(num_bytes)))


def _count_uses(rates: Sequence[tuple[Rate, str]], *, kibibytes: int = 1) -> Allowance:
    """The allowance of the first rate that refuses, else of the last."""
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


def _refuse_exceeded(allowance: Allowance) -> Allowance:
    if not allowance.allowed:
        raise RateExceeded(allowance)
    return allowance


def _round_up_kibibytes(num_bytes: int) -> int:
    """Rounded up: every row has some size."""
    return num_bytes // 1024 + 1


class TeamAndKey(NamedTuple):
    team: str
    key: str


class EveryRequest(BaseThrottle):
    """The throttle of every route: ninja calls it once the caller is known, before any other check.

    `also`: one more rate that the team's requests to this route count against, whose allowance is in the headers.
    """

    def __init__(self, names: Callable[[HttpRequest], TeamAndKey], *, also: Callable[[], Rate] | None = None) -> None:
        self._names = names
        self._also = also

    def allow_request(self, request: HttpRequest) -> bool:
        caller = self._names(request)
        if request.method in _SAFE:
            rates, kibibytes = [(REQUESTS, caller.team), (READS, caller.key)], 1
        else:
            rates, kibibytes = (
                [(REQUESTS, caller.team), (SENT, caller.team), (WRITES, caller.key)],
                _kibibytes_of(request),
            )
        allowance = _count_uses(rates + ([(self._also(), caller.team)] if self._also else []), kibibytes=kibibytes)
        request.META[_ALLOWANCE] = allowance
        return allowance.allowed


def _kibibytes_of(request: HttpRequest) -> int:
    """1 KiB for a part of an upload, which is unread and counts as storage, and for a body that will be refused."""
    is_part = request.content_type == MEDIA_TYPE.decode()
    is_refused = int(request.META.get("CONTENT_LENGTH") or 0) > MAX_BODY_BYTES
    return 1 if is_part or is_refused else _round_up_kibibytes(len(request.body))


def allowance_of(request: HttpRequest) -> Allowance | None:
    """The caller's remaining rate, once the request was counted."""
    allowance = request.META.get(_ALLOWANCE)
    return allowance if isinstance(allowance, Allowance) else None


def counted_at(request: HttpRequest) -> datetime:
    """When the request was counted: the database's time, without another query."""
    allowance = allowance_of(request)
    assert allowance is not None, "every route of the API counts its requests"
    return allowance.at
