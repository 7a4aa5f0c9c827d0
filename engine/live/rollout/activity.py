"""A replica's activity as spans without gaps or overlaps.

Invariant: at every instant a replica has exactly one activity; equal neighbours merge into one span.
"""

from typing import Final

from engine.pipeline.messages.to_driver import ActivitySpan, Doing

SHORTEST_S: Final = 0.02  # a shorter span is invisible on a page; its time counts towards the next span


class ActivityLog:
    def __init__(self, doing: Doing, now: float) -> None:
        self._doing, self._since = doing, now
        self._closed: list[ActivitySpan] = []

    def turn_to(self, doing: Doing, now: float) -> None:
        if doing == self._doing:
            return
        if now - self._since >= SHORTEST_S:
            self._close(now)
        self._doing = doing

    def take(self, now: float) -> tuple[ActivitySpan, ...]:
        """Returns the finished spans, and the current one cut at `now`."""
        if now > self._since:
            self._close(now)
        taken, self._closed = tuple(self._closed), []
        return taken

    def _close(self, now: float) -> None:
        self._closed.append(ActivitySpan(doing=self._doing, started_at=self._since, ended_at=now))
        self._since = now
