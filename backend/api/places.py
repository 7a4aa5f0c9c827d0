"""Places for what stays open, a stream or a socket: so many a team, so many a process.

Invariants:
- of any number that ask at once no more than the limit get a place;
- a place is given back once, however and however often its holder ends.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from threading import Lock

from django.conf import settings

from backend.api.problems import TooManyRequests, Unavailable


class NoPlaceForTeam(TooManyRequests):
    """Your team has as many of these open as it may; close one first."""

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
        """A place of every team that its holder is in; what is returned gives it back. Raises `refusal` or
        `Unavailable`."""
        limits, scale = self._limits(), settings.ENVIRONMENT.rate_scale
        with self._lock:
            if any(self._by_team[team] >= limits.of_a_team * scale for team in teams):
                raise refusal
            if self._num_taken >= limits.of_a_process * scale:
                raise Unavailable("This server holds as many of these as it can; try again in a moment.")
            self._by_team.update(teams)
            self._num_taken += 1
        waiting = [tuple(teams)]

        def give_back() -> None:
            with self._lock:
                if waiting:
                    self._num_taken -= 1
                    self._by_team -= Counter(waiting.pop())

        return give_back
