"""Resending of a batch to a trainer that still requests it.

Invariant: two sends of a batch are at least the interval apart, which doubles: a batch of gigabytes may still be in
transfer when the trainer requests it again.
"""

from typing import Final

BATCH_LOST_AFTER_S: Final = 2.0


class Resending:
    def __init__(self) -> None:
        self._batch: tuple[int, int] | None = None
        """Epoch and step of the last batch that was sent."""
        self._interval_s = BATCH_LOST_AFTER_S
        self._due_at = 0.0

    def is_due(self, epoch: int, step: int, now: float) -> bool:
        return (epoch, step) != self._batch or now >= self._due_at

    def note_sent(self, epoch: int, step: int, now: float) -> None:
        self._interval_s = 2 * self._interval_s if (epoch, step) == self._batch else BATCH_LOST_AFTER_S
        self._batch, self._due_at = (epoch, step), now + self._interval_s
