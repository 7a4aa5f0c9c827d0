"""The number of streams open in this process: an open one costs its socket, and a place in the hub.

Invariant: a place is given back however the stream ends.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from backend.api.problems import TooManyRequests, Unavailable

MOST_PER_KEY = 10
MOST_IN_A_PROCESS = 300


class TooManyStreams(TooManyRequests):
    """This key has as many open streams as it may; close one first."""

    code = "too_many_streams"


class OpenStreams:
    def __init__(self) -> None:
        self._by_key: Counter[str] = Counter()
        self._lock = Lock()

    def refuse_another(self, key: str) -> None:
        """Raises `TooManyStreams` or `Unavailable`."""
        if self._by_key[key] >= MOST_PER_KEY:
            raise TooManyStreams
        if self._by_key.total() >= MOST_IN_A_PROCESS:
            raise Unavailable("This server holds as many streams as it can; try again in a moment.")

    @contextmanager
    def one_more(self, key: str) -> Iterator[None]:
        with self._lock:
            self._by_key[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._by_key[key] -= 1
                if not self._by_key[key]:
                    del self._by_key[key]


open_streams = OpenStreams()
