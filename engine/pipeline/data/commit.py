"""The commit of data: no message leaves before the records that it follows from are on disk.

    handle ──▶ records ──▶ Persist ──▶ … Persisted ──▶ the messages that were held back

Invariants:
- a message is sent only when every record made before it is persisted: all that was acknowledged or batched survives;
- messages keep their order.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from engine.pipeline.effects import Effect, Persist
from engine.pipeline.journal import DataSnapshot, Record

# A log is read again after a crash: short enough for seconds.
RECORDS_PER_SNAPSHOT: Final = 2_000
# And long enough that snapshots, which say of each trajectory where it lies, are spread over twice as many records: a
# record is a trajectory nearly always.
RECORDS_PER_TRAJECTORY: Final = 2


class Commit:
    def __init__(self, snapshot: Callable[[], DataSnapshot], *, last_serial: int = 0) -> None:
        """`last_serial`: of the log that the state was restored from."""
        self._snapshot = snapshot
        self._serial = last_serial
        self._persisted = last_serial
        self._records: list[Record] = []
        self._num_since_snapshot = 0
        self._num_in_snapshot = 0  # trajectories of the last one
        self._held_back: deque[tuple[int, list[Effect]]] = deque()

    def record(self, record: Record) -> None:
        self._records.append(record)

    def after(self, effects: list[Effect]) -> list[Effect]:
        """Those of a message's effects that may happen at once; the rest follows `persisted`."""
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
