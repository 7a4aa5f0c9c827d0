"""One start at a time on this machine, of services that give up on themselves where they start slowly.

Ray ends when its raylet has not registered within 30 s, which no setting changes. Four that start together on two cores
all fail, are all started again, and so on for ever; one after the other each has the machine.

Invariant: a turn ends with its process, and no start waits longer than `WAITS_AT_MOST_S`: turns are a courtesy.
"""

import socket

from infra.local.claims import claim

WAITS_AT_MOST_S = 1_200.0  # each holder is ended after 300 s; `up` waits for 1800


class Turn:
    def __init__(self, name: str) -> None:
        self._name = f"turn-{name}"
        self._holder: socket.socket | None = None
        self._asked_at: float | None = None

    def take(self, now: float) -> bool:
        """Whether its service may start now; the caller retries until it may."""
        if self._asked_at is None:
            self._asked_at = now
        if self._holder is None:
            self._holder = claim(self._name)
        return self._holder is not None or now - self._asked_at >= WAITS_AT_MOST_S

    def leave(self) -> None:
        self._asked_at = None
        if self._holder is not None:
            self._holder.close()
            self._holder = None
