"""Limits of open connections (streams, sockets), per team and per process.

Invariants:
- concurrent callers never hold more than the limit;
- a place is released exactly once, however often and in whatever way its holder ends.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from threading import Lock

from django.conf import settings

from backend.api.problems import TooManyRequests, Unavailable


class NoPlaceForTeam(TooManyRequests):
    """Your team has reached its limit of open connections. Close one first."""

    code = "too_many_open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    of_a_team: int
    of_a_process: int


class Places:
    def __init__(self, limits: Callable[[], Limits]) -> None:
        self._limits = limits
        self._by_team: Counter[str] = Counter()
        self._num_taken = 0
        self._lock = Lock()

    def take(self, teams: Collection[str], *, refusal: type[TooManyRequests] = NoPlaceForTeam) -> Callable[[], None]:
        """Takes a place in every team of the holder and returns its release. Raises `refusal` or `Unavailable`."""
        limits, scale = self._limits(), settings.ENVIRONMENT.rate_scale
        with self._lock:
            if any(self._by_team[team] >= limits.of_a_team * scale for team in teams):
                raise refusal
            if self._num_taken >= limits.of_a_process * scale:
                raise Unavailable("This server has reached its limit of open connections. Try again in a moment.")
            self._by_team.update(teams)
            self._num_taken += 1
        held = [tuple(teams)]

        def release() -> None:
            with self._lock:
                if held:
                    self._num_taken -= 1
                    self._by_team -= Counter(held.pop())

        return release
