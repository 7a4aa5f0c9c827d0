"""Reads data's log after a restart: the newest snapshot and the journals from its number on.

Invariants:
- a torn end of the last journal does no harm; nothing after an incomplete frame is read;
- a snapshot with its final name is complete: if it cannot be read, the disk lost synced bytes, and that is an error.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import BinaryIO

from engine.live.data.frames import body_at, entry_of, frames
from engine.live.data.snapshots import JOURNAL, SNAPSHOT, numbered
from engine.pipeline.journal import DataSnapshot, Record, TrajectoryTaken
from engine.pipeline.records import Trajectory
from engine.process.progress import working


class LogLost(Exception):
    """A part of data's log that was synced cannot be read."""


def read_journal(folder: Path) -> tuple[DataSnapshot | None, list[Record]]:
    """Returns the newest snapshot and the records after it."""
    journals, snapshots = numbered(folder, JOURNAL), numbered(folder, SNAPSHOT)
    first = max(snapshots, default=0)
    snapshot = _read_snapshot(snapshots[first]) if snapshots else None
    return snapshot, list(_read_records([file for number, file in journals.items() if number >= first]))


def _read_records(files: Sequence[Path]) -> Iterator[Record]:
    for file in files:
        whole = 0
        with file.open("rb") as content:
            for body, end in frames(content):
                with working("log"):
                    entry, whole = entry_of(body, resolve=[].__getitem__), end
                assert not isinstance(entry, DataSnapshot | Trajectory), f"{file} holds a {type(entry).__name__}"
                yield entry
        if whole < file.stat().st_size:
            return


def _read_snapshot(file: Path) -> DataSnapshot:
    with file.open("rb") as content:
        last = deque(frames(content), maxlen=1)
    if not last or last[0][1] < file.stat().st_size:
        raise LogLost(f"the log's snapshot {file} is torn")
    with ExitStack() as stack:

        @cache
        def file_of(name: str) -> BinaryIO:
            return stack.enter_context((file.parent / name).open("rb"))

        state = entry_of(last[0][0], resolve=lambda offset: _read_trajectory(file_of(offset[0]), offset[1]))
    assert isinstance(state, DataSnapshot), f"{file} ends with {type(state).__name__}"
    return state


def _read_trajectory(file: BinaryIO, at: int) -> Trajectory:
    body = body_at(file, at)
    if body is None:
        raise LogLost(f"the trajectory at byte {at} of {file.name} is torn")
    with working("log"):
        entry = entry_of(body, resolve=[].__getitem__)
    trajectory = entry.trajectory if isinstance(entry, TrajectoryTaken) else entry
    assert isinstance(trajectory, Trajectory), f"{type(trajectory).__name__} at byte {at} of {file.name}"
    return trajectory
