"""Data's write-ahead commit: no message leaves before the records that caused it are on disk.

    handle ──▶ records ──▶ Persist ──▶ … Persisted ──▶ the messages held back

Invariants:
- a message is sent only when every earlier record is persisted: everything acknowledged or batched survives;
- messages keep their order.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from engine.pipeline.effects import Effect, Persist
from engine.pipeline.journal import DataSnapshot, Record

# The log is replayed after a crash: short enough to take seconds.
RECORDS_PER_SNAPSHOT: Final = 2_000
# Long enough that the cost of a snapshot, which lists every trajectory, spreads over twice as many records (nearly
# every record is a trajectory).
RECORDS_PER_TRAJECTORY: Final = 2


class Commit:
    def __init__(self, snapshot: Callable[[], DataSnapshot], *, last_serial: int = 0) -> None:
        """`last_serial`: last serial of the log from which the state was restored."""
        self._snapshot = snapshot
        self._serial = last_serial
        self._persisted = last_serial
        self._records: list[Record] = []
        self._num_since_snapshot = 0
        self._num_in_snapshot = 0  # trajectories in the last snapshot
        self._held_back: deque[tuple[int, list[Effect]]] = deque()

    def record(self, record: Record) -> None:
        self._records.append(record)

    def after(self, effects: list[Effect]) -> list[Effect]:
        """The effects that may happen at once; `persisted` releases the rest."""
        persist: list[Effect] = []
        if self._records:
            persist.append(self._persist())
        if self._serial == self._persisted:
            return effects
        if effects:
            self._held_back.append((self._serial, effects))
        return persist

    def persisted(self, serial: int) -> list[Effect]:
        self._persisted = max(self._persisted, serial)
        released: list[Effect] = []
        while self._held_back and self._held_back[0][0] <= self._persisted:
            released += self._held_back.popleft()[1]
        return released

    def _persist(self) -> Persist:
        records, self._records = tuple(self._records), []
        self._serial += len(records)
        self._num_since_snapshot += len(records)
        snapshot = None
        if self._num_since_snapshot >= max(RECORDS_PER_SNAPSHOT, RECORDS_PER_TRAJECTORY * self._num_in_snapshot):
            snapshot, self._num_since_snapshot = self._snapshot(), 0
            self._num_in_snapshot = snapshot.num_trajectories
        return Persist(serial=self._serial, records=records, snapshot=snapshot)
