"""Data's log as it is read after its death: the newest snapshot and the journals from its number on.

Invariants:
- what is left of the last journal's end does not matter; what is behind a frame that is not whole is not read;
- a snapshot that has its name is whole: if it cannot be read, the disk has lost what it kept, and that is an error.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

from engine.live.data.frames import body_at, entry_of, frames
from engine.live.data.snapshots import JOURNAL, SNAPSHOT, numbered
from engine.pipeline.journal import DataSnapshot, Record, TrajectoryTaken
from engine.pipeline.records import Trajectory
from engine.signs import at_work

_READ_BYTES: Final = 16 * 2**20


class LogLost(Exception):
    """What data's log must tell cannot be read."""


def read_journal(folder: Path) -> tuple[DataSnapshot | None, list[Record]]:
    """The newest snapshot, and what came after it."""
    journals, snapshots = numbered(folder, JOURNAL), numbered(folder, SNAPSHOT)
    first = max(snapshots, default=0)
    snapshot = _snapshot(snapshots[first]) if snapshots else None
    return snapshot, list(_records([file for number, file in journals.items() if number >= first]))


def _records(files: Sequence[Path]) -> Iterator[Record]:
    for file in files:
        content = _content(file)
        whole = 0
        for body, end in frames(content):
            with at_work("log"):
                entry, whole = entry_of(body, found=[].__getitem__), end
            assert not isinstance(entry, DataSnapshot | Trajectory), f"{file} holds a {type(entry).__name__}"
            yield entry
        if whole < len(content):
            return


def _content(file: Path) -> bytes:
    """Read in pieces, each a sign of life; joined once, so that memory holds at most one copy and one piece more."""
    pieces = BytesIO()
    with file.open("rb", buffering=0) as stream:
        while True:
            with at_work("log"):
                if not (piece := stream.read(_READ_BYTES)):
                    return pieces.getvalue()
                pieces.write(piece)


def _snapshot(file: Path) -> DataSnapshot:
    content = _content(file)
    last = None
    for body, whole in frames(content):
        last = body if whole == len(content) else None
    if last is None:
        raise LogLost(f"the log's snapshot {file} is torn")
    with ExitStack() as opened:

        @cache
        def file_of(name: str) -> BinaryIO:
            return opened.enter_context((file.parent / name).open("rb"))

        state = entry_of(last, found=lambda place: _trajectory(file_of(place[0]), place[1]))
    assert isinstance(state, DataSnapshot), f"{file} ends with {type(state).__name__}"
    return state


def _trajectory(file: BinaryIO, at: int) -> Trajectory:
    body = body_at(file, at)
    if body is None:
        raise LogLost(f"the trajectory at byte {at} of {file.name} is torn")
    with at_work("log"):
        entry = entry_of(body, found=[].__getitem__)
    found = entry.trajectory if isinstance(entry, TrajectoryTaken) else entry
    assert isinstance(found, Trajectory), f"{type(found).__name__} at byte {at} of {file.name}"
    return found
